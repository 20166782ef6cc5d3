#!/bin/sh
cat > /tmp/expected <<'END'
The harbor opens at nine.
Bring a lantern.
END
if cmp -s /tmp/expected /app/message.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
