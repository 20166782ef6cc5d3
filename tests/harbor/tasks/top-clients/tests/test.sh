#!/bin/sh
cat > /tmp/expected <<'END'
10.0.0.1
10.0.0.3
END
if cmp -s /tmp/expected /app/top.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
