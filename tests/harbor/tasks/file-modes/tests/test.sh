#!/bin/sh
cd /app
reward=1
[ -x start.sh ] && [ -x stop.sh ] || reward=0
[ "$(stat -c %a secret.key)" = 600 ] || reward=0
echo "$reward" > /logs/verifier/reward.txt
