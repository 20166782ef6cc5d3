#!/bin/sh
cat > /tmp/expected <<'END'
mira@example.org
zoe@example.org
END
if cmp -s /tmp/expected /app/emails.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
