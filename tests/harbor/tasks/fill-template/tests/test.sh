#!/bin/sh
cat > /tmp/expected <<'END'
Dear Ada,
how is Delft? Ada must know.
END
if cmp -s /tmp/expected /app/letter.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
