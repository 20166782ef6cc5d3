#!/bin/sh
cat > /tmp/expected <<'END'
adam,15
mira,14
zoe,4
END
if cmp -s /tmp/expected /app/totals.csv; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
