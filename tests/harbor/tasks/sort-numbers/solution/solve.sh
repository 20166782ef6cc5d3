#!/bin/sh
set -e
sort -n numbers.txt > sorted.txt
