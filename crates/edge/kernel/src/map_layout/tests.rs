//! Compares the Rust and C declarations of the shared structures: the C compiler checks the Rust offsets and
//! sizes of all fields against `bpf/lib/shared.h`.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use fairmesh_balancer::SharedStats;
use fairmesh_router::CandidateNumbers;
use fairmesh_test_support::skipped;

use super::*;

/// A structure declared on both sides.
struct SharedStructure {
    /// Name in C.
    name: &'static str,
    size: usize,
    fields: Vec<Field>,
}

struct Field {
    /// The C member, or the first and last of several members that form one Rust field.
    members: (&'static str, &'static str),
    offset: usize,
    size: usize,
}

/// Lists all fields in order. A field whose C member has another name is listed with that name.
macro_rules! compared {
    ($type:ty, $name:literal, [$($($field:tt).+ $(= $first:literal $(..= $last:literal)?)?),* $(,)?]) => {
        SharedStructure {
            name: $name,
            size: size_of::<$type>(),
            fields: vec![$(Field {
                members: members(&[stringify!($($field).+) $(, $first $(, $last)?)?]),
                offset: std::mem::offset_of!($type, $($field).+),
                size: field_size(|value: &$type| &value.$($field).+),
            }),*],
        }
    };
}

fn field_size<T, F>(_: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// The C members of a field: those given, or the field's Rust name.
fn members(names: &[&'static str]) -> (&'static str, &'static str) {
    match names {
        [_, first, last] => (first, last),
        [.., only] => (only, only),
        [] => ("", ""),
    }
}

impl SharedStructure {
    /// Whether the fields are contiguous, so that none is missing on either side.
    fn has_all_fields(&self) -> bool {
        let end = |at: usize, field: &Field| (field.offset == at).then_some(at + field.size);
        self.fields.iter().try_fold(0, end) == Some(self.size)
    }

    fn assertions(&self) -> Vec<String> {
        let Self { name, size, .. } = self;
        let mut all = vec![format!("sizeof(struct {name}) == {size}")];
        for Field { members: (first, last), offset, size } in &self.fields {
            let begin = |member| format!("__builtin_offsetof(struct {name}, {member})");
            all.push(format!("{} == {offset}", begin(first)));
            let length = format!("sizeof(((struct {name} *)0)->{last})");
            all.push(format!("{} + {length} == {}", begin(last), offset + size));
        }
        all
    }
}

/// The shared structures.
fn structures() -> Vec<SharedStructure> {
    vec![
        compared!(SelectionValue, "selection", [networks, ports, address, mask, port, only_services]),
        compared!(AttachmentValue, "attachment", [was_created, roles, group, short_cut, selection, path]),
        compared!(GroupValue, "group", [most, in_flight, connections, unused]),
        compared!(ProxyConfig, "proxy_config", [netns_cookie, pid, only_services, container_socket, unused]),
        compared!(CallerAddress, "caller_address", [netns_cookie, ip, port]),
        compared!(DestinationValue, "destination", [cookie, ip, port, only_services, by_tcp, unused]),
        compared!(HostKey, "host", [0 = "word"]),
        compared!(ServiceValue, "service", [id, position, unused]),
        compared!(CandidateNumbers, "candidate", [index, weight, cumulative_weight]),
        compared!(ArmValue, "arm", [cumulative_weight, id, position, unused]),
        policy(),
        compared!(PolicyBuffers, "policy_buffers", [generation, buffers = "buffer"]),
        compared!(EndpointValue, "endpoint", [slots = "slot", wanted, closes_until]),
        compared!(LocalConnection, "connection", [proxy_ip, server_ip, proxy_port, server_port]),
        link(),
        slot(),
        compared!(PermitValue, "permit", [generation, until, endpoint, length, fields]),
    ]
}

fn policy() -> SharedStructure {
    compared!(
        PolicyValue,
        "policy",
        [
            id,
            origin,
            block,
            repeats_any,
            numbers.ticks_per_nano = "ticks_per_nano",
            numbers.memory = "memory",
            numbers.policy = "policy",
            numbers.len = "length",
            numbers.equal_weight = "equal_weight",
            numbers.candidates = "candidates",
            step_count,
            unused_count,
            arms,
            steps,
        ]
    )
}

fn link() -> SharedStructure {
    compared!(
        LinkValue,
        "link",
        [cookie, bytes, received, requests, sent, diverted, length, pipelines, moved, read]
    )
}

fn slot() -> SharedStructure {
    compared!(
        SlotValue,
        "slot",
        [
            owner,
            claimed_ns,
            seed,
            length,
            endpoint,
            connection,
            is_direct,
            response = "status"..="body_bytes",
            head_bytes,
            programs = "finished_ns"..="load_bytes",
            group,
            permit,
            unused,
            load,
            request,
        ]
    )
}

/// A [`CompletedValue`] consists of the first fields of a slot.
fn completed() -> SharedStructure {
    compared!(
        CompletedValue,
        "slot",
        [
            cookie = "owner",
            claimed_ns,
            seed,
            length,
            endpoint,
            connection,
            is_direct,
            status,
            body_bytes,
            head_bytes,
            finished_ns,
            load_bytes,
            group,
            permit,
            unused,
            load,
        ]
    )
}

/// Constants by their C names, and sizes of structures whose fields are private to other crates. The vectors
/// of those crates compare the fields.
fn constants() -> Vec<String> {
    let numbers = [
        ("REQUEST_BYTES", MAX_KEPT as u64),
        ("MOST_REQUEST_BYTES", MAX_REQUEST as u64),
        ("HOST_BYTES", HOST_BYTES as u64),
        ("SELECTED", SELECTED as u64),
        ("PATH_BYTES", PATH_BYTES as u64),
        ("SERVICES", SERVICES.into()),
        ("BLOCK_ENDPOINTS", BLOCK_ENDPOINTS as u64),
        ("ENDPOINTS", ENDPOINTS.into()),
        ("ROUTE_STEPS", ROUTE_STEPS as u64),
        ("ROUTE_ARMS", ROUTE_ARMS as u64),
        ("ENDPOINT_SLOTS", ENDPOINT_SLOTS as u64),
        ("SLOTS", SLOTS.into()),
        ("CALLERS", LINKS.into()),
        ("ATTACHMENTS", ATTACHMENTS.into()),
        ("LOAD_BYTES", LOAD_BYTES as u64),
        ("PERMITS", PERMITS.into()),
        ("PERMIT_BYTES", PERMIT_BYTES as u64),
        ("OVER_IPV6", OVER_IPV6.into()),
        ("sizeof(struct address)", size_of::<MappedAddress>() as u64),
        ("SLOT_ABSENT", SLOT_ABSENT),
        ("SLOT_IDLE", SLOT_IDLE),
        ("WITHDRAWN", WITHDRAWN),
        ("COUNTERS", Counter::ALL.len() as u64),
        ("sizeof(struct route_step)", size_of::<RouteStep>() as u64),
        ("sizeof(struct hot_block)", size_of::<SharedStats>() as u64),
        ("__builtin_offsetof(struct slot, request)", size_of::<CompletedValue>() as u64),
    ];
    numbers.map(|(name, value)| format!("{name} == {value}ULL")).to_vec()
}

/// The C name of a counter.
fn constant_of(counter: Counter) -> &'static str {
    match counter {
        Counter::Redirected => "CONNECT_REDIRECTED",
        Counter::NoProxy => "CONNECT_NO_PROXY",
        Counter::SentByKernel => "SENT_BY_KERNEL",
        Counter::NotRegistered => "NOT_REGISTERED",
        Counter::InFlight => "IN_FLIGHT",
        Counter::NotPlain => "NOT_PLAIN",
        Counter::TooLarge => "TOO_LARGE",
        Counter::ServiceUnknown => "SERVICE_UNKNOWN",
        Counter::NoIdleConnection => "NO_IDLE_CONNECTION",
        Counter::RedirectFailed => "REDIRECT_FAILED",
        Counter::EndpointEjected => "ENDPOINT_EJECTED",
        Counter::PolicyChanged => "POLICY_CHANGED",
        Counter::RouteLeft => "ROUTE_LEFT",
        Counter::AnsweredDirectly => "ANSWERED_DIRECTLY",
        Counter::ResponseLeft => "RESPONSE_LEFT",
        Counter::ShortCut => "SHORT_CUT",
        Counter::GroupFull => "GROUP_FULL",
        Counter::Refused => "CONNECT_REFUSED",
        Counter::ForwardedRequest => "FORWARDED_REQUEST",
        Counter::ForwardedResponse => "FORWARDED_RESPONSE",
        Counter::MovedToProxy => "MOVED_TO_PROXY",
        Counter::Blocking => "CONNECT_BLOCKING",
        Counter::ByLength => "CONNECT_BY_LENGTH",
        Counter::TooManyConnections => "CONNECT_TOO_MANY",
        Counter::BlocksLater => "BLOCKS_LATER",
        Counter::Permitted => "PERMITTED",
        Counter::NotPermitted => "NOT_PERMITTED",
        Counter::Ipv6Left => "CONNECT_IPV6_LEFT",
    }
}

/// The compiler's errors for these assertions; empty if all of them hold.
fn refused(clang: &str, assertions: &[String]) -> String {
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bpf/lib");
    let mut child = Command::new(clang)
        .args(["-target", "bpf", "-fsyntax-only", "-ferror-limit=0", "-x", "c", "-I"])
        .arg(headers)
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let asserted = assertions.iter().map(|that| format!("_Static_assert({that}, \"crates/kernel\");\n"));
    let source = format!("#include \"shared.h\"\n{}", asserted.collect::<String>());
    // The compiler reads all input before it prints anything, so the pipes cannot deadlock.
    child.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

#[test]
fn rust_map_layout_matches_c_headers() {
    let Some(clang) = option_env!("KERNEL_CLANG") else {
        return skipped("both sides of shared memory are compared by clang", "clang is missing");
    };
    let structures = structures();
    for compared in structures.iter().chain([&completed()]) {
        assert!(
            compared.has_all_fields(),
            "{}: name all its fields in this test, in their order",
            compared.name
        );
    }
    let counters = (0..).zip(Counter::ALL);
    let counters = counters.map(|(at, counter): (u32, _)| format!("{} == {at}", constant_of(counter)));
    let fields = structures.iter().flat_map(SharedStructure::assertions);
    // The total size is not compared, since a slot is larger.
    let completed = completed().assertions().split_off(1);
    let all: Vec<_> = fields.chain(completed).chain(constants()).chain(counters).collect();
    assert_eq!(refused(clang, &all), "", "the two sides differ");
    // Counterexample: a slot of another size must be refused.
    let other = format!("sizeof(struct slot) == {}", size_of::<SlotValue>() + 8);
    assert!(refused(clang, &[other]).contains("sizeof(struct slot)"));
}

#[test]
fn connections_of_both_families_to_servers_here_have_keys_of_their_own() {
    let number = |address: MappedAddress| (address == [0, 0, 0, u32::from_be(1)]).then_some(0x0100_007f);
    let of = |proxy: &str, server: &str| {
        LocalConnection::new(proxy.parse().unwrap(), server.parse().unwrap(), number)
    };
    let four = of("127.0.0.1:9", "127.0.0.1:80").unwrap();
    assert_eq!(of("[::ffff:127.0.0.1]:9", "127.0.0.1:80"), Some(four));
    // The number is that of 127.0.0.1 in memory: the family alone differs.
    let six = of("[::1]:9", "[::1]:80").unwrap();
    assert!(six != four && six.server_ip == six.proxy_ip);
    for (proxy, server) in
        [("[fd00::1]:9", "[fd00::1]:80"), ("[::1]:9", "[fd00::1]:80"), ("[::1]:9", "127.0.0.1:80")]
    {
        assert_eq!(of(proxy, server), None, "{proxy} {server}");
    }
    assert_eq!(of("192.0.2.1:9", "192.0.2.2:80"), None);
}

#[test]
fn host_name_over_length_limit_has_no_kernel_map_key() {
    assert!(HostKey::new(&"a".repeat(HOST_BYTES)).is_some());
    assert!(HostKey::new(&"a".repeat(HOST_BYTES + 1)).is_none());
}
