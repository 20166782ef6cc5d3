#!/bin/sh
set -e
for name in photo-*.jpeg; do
    number=${name#photo-}
    mv "$name" "$(printf 'photo-%03d.jpg' "${number%.jpeg}")"
done
