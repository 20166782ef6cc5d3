#!/bin/sh
cat > /tmp/expected <<'END'
debug=yes
host=localhost
port=80
user=web
END
if cmp -s /tmp/expected /app/merged.conf; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
