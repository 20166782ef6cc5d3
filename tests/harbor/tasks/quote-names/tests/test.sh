#!/bin/sh
mkdir -p "/tmp/my files"
echo one > "/tmp/my files/a b.txt"
echo two > "/tmp/my files/c.txt"
sh /app/backup.sh "/tmp/my files" "/tmp/the copy" 2>/dev/null
if diff -r "/tmp/my files" "/tmp/the copy" > /dev/null 2>&1; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
