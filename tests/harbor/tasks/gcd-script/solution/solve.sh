#!/bin/sh
set -e
cat > gcd.sh <<'END'
a=$1 b=$2
while [ "$b" -ne 0 ]; do
    set -- "$b" "$((a % b))"
    a=$1 b=$2
done
echo "$a"
END
