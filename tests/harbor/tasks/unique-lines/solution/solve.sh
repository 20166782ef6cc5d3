#!/bin/sh
set -e
awk '!seen[$0]++' list.txt > list.new
mv list.new list.txt
