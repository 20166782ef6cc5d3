#!/bin/sh
cat > /tmp/expected <<'END'
plum
pear
apple
fig
END
if cmp -s /tmp/expected /app/list.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
