# To be sourced: checks that run at the same time, each with a folder and an output of its own. The script has `work`, a folder, and `die`.

# Number of checks at a time.
AT_A_TIME=${AT_A_TIME:-4}

declare -A names=()
failed=()

# `beside NAME COMMAND...`: starts a check, in which `work` is a folder of its own. Its output is printed when it has ended.
beside() {
    local name=$1
    shift
    [ ${#names[@]} -lt "$AT_A_TIME" ] || ended
    mkdir -p "$work/$name"
    # A group of its own, which can be ended as a whole.
    set -m
    (
        set +m
        output=$work/$name.output
        work=$work/$name
        exec >"$output" 2>&1 </dev/null
        "$@"
    ) &
    set +m
    names[$!]=$name
}

# Waits for one check.
ended() {
    local status=0 one name
    wait -n -p one "${!names[@]}" || status=$?
    name=${names[$one]}
    unset "names[$one]"
    # Processes that it has left.
    kill -- "-$one" 2>/dev/null || true
    if [ $status = 0 ]; then
        cat "$work/$name.output"
    else
        failed+=("$name")
        cat "$work/$name.output" >&2
        echo "$(basename "$0"): $name failed" >&2
    fi
}

# Waits for all checks. Fails if one has failed.
all_ended() {
    while [ ${#names[@]} -gt 0 ]; do
        ended
    done
    [ ${#failed[@]} = 0 ] || die "failed: ${failed[*]}"
}

# Ends the checks that still run, for a script that ends early.
end_checks() {
    local one
    for one in "${!names[@]}"; do
        kill -- "-$one" 2>/dev/null || true
        wait "$one" 2>/dev/null || true
    done
}
