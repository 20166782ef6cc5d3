#!/bin/sh
cat > /tmp/expected <<'END'
Meet me at the pier, after the last ferry.
END
if cmp -s /tmp/expected /app/plain.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
