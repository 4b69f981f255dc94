#!/bin/sh
# A program of two ranks in two network namespaces of this machine, over a link of limited rate and some latency:
#
#     sh tests/ranks_link.sh RATE DELAY PROGRAM [ARGUMENT ...]      such as 100mbit 1ms examples/ranks/build/ranks 40 0 12 345
#
# Needs root, ip, tc and Open MPI (MPIRUN names its launcher). Prints the bytes that went over the link after what the program prints.
set -eu
rate=$1 delay=$2
shift 2
: "${MPIRUN:=mpirun}"
agent=$(mktemp)
clean() {
    for side in 0 1; do ip netns del "onnxc-rank$side" 2> /dev/null || true; done
    rm -f "$agent"
}
trap clean EXIT
for side in 0 1; do ip netns add "onnxc-rank$side"; done
ip link add onnxc0 netns onnxc-rank0 type veth peer name onnxc1 netns onnxc-rank1
for side in 0 1; do
    ip -n "onnxc-rank$side" addr add "10.77.0.$((side + 1))/24" dev "onnxc$side"
    ip -n "onnxc-rank$side" link set lo up
    ip -n "onnxc-rank$side" link set "onnxc$side" up
    # One way each. The queue has room for what the delay keeps.
    tc -n "onnxc-rank$side" qdisc add dev "onnxc$side" root netem rate "$rate" delay "$delay" limit 10000 2> /dev/null || {
        echo "no netem in this kernel: the link has the rate, and no delay" >&2
        tc -n "onnxc-rank$side" qdisc add dev "onnxc$side" root tbf rate "$rate" burst 64kb latency 400ms
    }
done
# What the launcher calls in place of ssh: HOST COMMAND.
cat > "$agent" << 'EOF'
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
side=$((${1##*.} - 1))
shift
exec ip netns exec "onnxc-rank$side" sh -c "$*"
EOF
chmod +x "$agent"
ip netns exec onnxc-rank0 "$MPIRUN" --allow-run-as-root --mca plm_rsh_agent "$agent" --mca oob_tcp_if_include 10.77.0.0/24 \
    --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 --mca pml ob1 --host 10.77.0.1,10.77.0.2 -n 2 "$@"
for side in 0 1; do
    ip -n "onnxc-rank$side" -s link show "onnxc$side" | awk -v side="$side" 'seen { print "rank " side ": " $1 " bytes over the link"; exit } /TX:/ { seen = 1 }' >&2
done
