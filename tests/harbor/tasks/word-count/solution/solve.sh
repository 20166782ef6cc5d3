#!/bin/sh
set -e
wc -w < poem.txt | tr -d ' ' > count.txt
