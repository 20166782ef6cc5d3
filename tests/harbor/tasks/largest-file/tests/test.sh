#!/bin/sh
cat > /tmp/expected <<'END'
/app/data/b/c/two.bin
END
if cmp -s /tmp/expected /app/largest.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
