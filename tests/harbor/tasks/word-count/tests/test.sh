#!/bin/sh
cat > /tmp/expected <<'END'
20
END
if cmp -s /tmp/expected /app/count.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
