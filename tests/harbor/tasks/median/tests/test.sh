#!/bin/sh
cd /app
python3 -c '
import sys
sys.path.insert(0, "/app")
from median import median
given = [3.0, 1.0, 2.0]
assert median(given) == 2 and given == [3.0, 1.0, 2.0]
assert median([4, 1, 3, 2]) == 2.5
assert median([5]) == 5
'
if [ $? = 0 ]; then echo '{"reward": 1}'; else echo '{"reward": 0}'; fi > /logs/verifier/reward.json
