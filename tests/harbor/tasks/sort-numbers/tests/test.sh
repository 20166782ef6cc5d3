#!/bin/sh
cat > /tmp/expected <<'END'
-3
0
9
10
27
100
END
if cmp -s /tmp/expected /app/sorted.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
