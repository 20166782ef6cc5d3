#!/bin/sh
reward=1
while read -r first second expected; do
    [ "$(sh /app/gcd.sh "$first" "$second" 2>/dev/null)" = "$expected" ] || reward=0
done <<'END'
12 18 6
17 5 1
100 75 25
8 8 8
END
echo "$reward" > /logs/verifier/reward.txt
