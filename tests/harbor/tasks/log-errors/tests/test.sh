#!/bin/sh
cat > /tmp/expected <<'END'
2 disk full
1 bad key
1 no route
END
if cmp -s /tmp/expected /app/errors.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
