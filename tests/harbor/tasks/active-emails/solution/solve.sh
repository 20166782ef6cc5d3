#!/bin/sh
set -e
python3 -c '
import json
users = sorted(json.load(open("users.json")), key=lambda user: user["id"])
print("\n".join(user["email"] for user in users if user["active"]))
' > emails.txt
