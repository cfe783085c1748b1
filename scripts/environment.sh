# Sourced by scripts/{testnet,test,check}: makes the virtual environment when constraints or dependencies changed.
# Sets `venv` and `install_seconds`. VENV names another folder than .venv, PYTHON another interpreter.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-$root/.venv}
install_seconds=0

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail 'no Python 3.11, 3.12 or 3.13 found; on Debian: sudo apt install python3 python3-venv'
}

make_venv() {
    local python=$1
    rm -rf "$venv"
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        "$python" -m venv "$venv" || fail "cannot make a virtual environment in $venv"
    elif "$python" -c 'import pip, venv' 2>/dev/null; then
        "$python" -m venv --without-pip "$venv" || fail "cannot make a virtual environment in $venv"
    else
        fail 'this Python cannot make virtual environments; on Debian: sudo apt install python3-venv'
    fi
}

# pip of the environment, or the system's working on it where Debian split ensurepip away
venv_pip() {
    if "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        "$venv/bin/python" -m pip "$@"
    else
        "$(find_python)" -m pip --python "$venv/bin/python" "$@"
    fi
}

# waits for a background job, one line of progress a quarter minute (or a running clock on a terminal)
wait_for() {
    local job=$1 begun=$2 last=0 spent
    while kill -0 "$job" 2>/dev/null; do
        spent=$(($(date +%s) - begun))
        if [ -t 2 ]; then
            printf '\r  installing packages: %d s ' "$spent" >&2
        elif [ $((spent - last)) -ge 15 ]; then
            printf '  installing packages: %d s\n' "$spent" >&2
            last=$spent
        fi
        sleep 0.5
    done
    [ -t 2 ] && printf '\r\033[K' >&2
    wait "$job"
}

# ensure_environment [EXTRA]: nothing to do, and nothing printed, when the stamp matches
ensure_environment() {
    local extra=${1:-} stamp wanted begun log job
    stamp=$venv/.installed${extra:+-$extra}
    wanted=$(cat "$root/constraints.txt" "$root/pyproject.toml" | sha256sum | cut -d' ' -f1)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && [ -x "$venv/bin/python" ]; then
        return
    fi
    begun=$(date +%s)
    printf 'Setting up %s (once; a few minutes the first time)\n' "${venv#"$root"/}" >&2
    [ -x "$venv/bin/python" ] || make_venv "$(find_python)"
    log=$venv/install.log
    # not compiled: most of what is installed is never imported, and Python compiles the rest when it is
    venv_pip install --no-compile --disable-pip-version-check --no-input -c "$root/constraints.txt" \
        -e "$root${extra:+[$extra]}" >"$log" 2>&1 &
    job=$!
    trap 'kill "$job" 2>/dev/null; exit 130' INT TERM
    if ! wait_for "$job" "$begun"; then
        tail -n 15 "$log" >&2
        fail "the installation failed; the whole of pip's output is in $log"
    fi
    trap - INT TERM
    printf '%s' "$wanted" >"$stamp"
    install_seconds=$(($(date +%s) - begun))
    printf 'installed in %d s\n' "$install_seconds" >&2
}

# ensure_anvil: Foundry's chain for the ledger's tests, where there is npm; without it they are skipped. Sets INTELLECT_ANVIL.
anvil_version=1.7.1
ensure_anvil() {
    local folder=$venv/anvil-$anvil_version found
    [ -n "${INTELLECT_ANVIL:-}" ] && return
    if ! compgen -G "$folder/node_modules/@foundry-rs/anvil-*/bin/anvil*" >/dev/null; then
        command -v npm >/dev/null 2>&1 || return 0
        npm install --prefix "$folder" --ignore-scripts --no-save --no-audit --no-fund --loglevel=error \
            "@foundry-rs/anvil@$anvil_version" >/dev/null 2>&1 || {
            printf 'anvil could not be fetched: its tests are skipped\n' >&2
            return 0
        }
    fi
    found=$(compgen -G "$folder/node_modules/@foundry-rs/anvil-*/bin/anvil*" | head -n 1) || return 0
    export INTELLECT_ANVIL=$found
}

# ensure_chromium: the browser of the page's tests, where we may install one; without it they are skipped, and say so.
ensure_chromium() {
    local name
    [ -n "${CHROMIUM:-}" ] && return
    for name in chromium chromium-browser google-chrome; do
        command -v "$name" >/dev/null 2>&1 && return
    done
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        printf 'no Chromium here: the tests of the page are skipped (Debian: sudo apt-get install chromium)\n' >&2
        return
    fi
    printf 'installing Chromium for the tests of the page\n' >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
        >"$venv/chromium.log" 2>&1 || printf 'Chromium could not be installed: the tests of the page are skipped\n' >&2
}
