#!/bin/sh
set -e
cat > backup.sh <<'END'
#!/bin/sh
mkdir -p "$2"
for path in "$1"/*; do
    cp "$path" "$2/"
done
END
