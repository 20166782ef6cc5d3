#!/bin/sh
cd /app
reward=1
[ "$(echo photo*)" = "photo-001.jpg photo-007.jpg photo-012.jpg" ] || reward=0
[ "$(cat photo-001.jpg photo-007.jpg photo-012.jpg 2>/dev/null | tr '\n' ' ')" = "one seven twelve " ] || reward=0
echo "$reward" > /logs/verifier/reward.txt
