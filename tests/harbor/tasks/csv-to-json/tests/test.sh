#!/bin/sh
python3 -c '
import json
rows = json.load(open("/app/people.json"))
assert rows == [{"name": "Ito, Mira", "age": 41}, {"name": "Adam", "age": 19}]
' 2>/dev/null
if [ $? = 0 ]; then echo 1.0; else echo 0.0; fi > /logs/verifier/reward.txt
