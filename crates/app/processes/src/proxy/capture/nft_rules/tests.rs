use super::{super::port_and_network_args::merged, *};

fn rules(at: &[&str]) -> Rules {
    Rules { at: at.iter().map(|at| at.parse().unwrap()).collect(), ..Rules::default() }
}

fn lines(rules: &Rules) -> Vec<String> {
    let script = rules.script();
    let (_, inside) = script.split_once("policy accept;\n").unwrap();
    inside.lines().map(|line| line.trim().to_owned()).filter(|line| line.len() > 1).collect()
}

#[test]
fn default_rules_capture_port_80_of_all_users_except_proxy() {
    let mut rules = rules(&["127.0.0.1:7415"]);
    rules.except(Some(998)).unwrap();
    assert_eq!(
        lines(&rules),
        [
            r#"oifname "lo" return"#,
            "meta skuid { 998 } return",
            "jump to_proxy",
            "chain to_proxy {",
            "meta nfproto ipv4 tcp dport 80 dnat ip to 127.0.0.1:7415",
        ]
    );
    assert!(
        rules.script().starts_with(&format!("table {TABLE}\ndelete table {TABLE}\n")),
        "replaced at once"
    );
    assert!(!rules.words().contains("root"));
}

#[test]
fn ports_networks_and_owners_restrict_captured_connections() {
    let mut rules = rules(&["127.0.0.1:7415", "[::1]:7415"]);
    rules.ports = merged(&["8000-8010", "443", "8005-8020", "8021"].map(|ports| ports.parse().unwrap()));
    rules.to = ["10.1.2.3/8", "fd00::1", "10.9.9.9/8"].iter().map(|net| net.parse().unwrap()).collect();
    rules.uids = [1000].into();
    rules.cgroups = vec![Cgroup { path: "a.slice/b".into(), level: 2 }];
    rules.loopback = true;
    rules.reach().unwrap();
    rules.except(Some(1000)).unwrap();
    assert_eq!(
        lines(&rules),
        [
            "meta skuid { 1000 } jump to_proxy",
            r#"socket cgroupv2 level 2 "a.slice/b" jump to_proxy"#,
            "chain to_proxy {",
            "ip daddr 10.0.0.0/8 tcp dport { 443, 8000-8021 } dnat ip to 127.0.0.1:7415",
            "ip6 daddr fd00::1/128 tcp dport { 443, 8000-8021 } dnat ip6 to [::1]:7415",
        ]
    );
}

#[test]
fn forwarded_connections_are_captured_from_given_networks() {
    let mut rules = rules(&["127.0.0.1:7415", "[::1]:7415"]);
    rules.except(Some(998)).unwrap();
    assert!(!rules.script().contains("tproxy") && rules.passing_families().is_empty());
    rules.from = ["10.1.2.3/8", "192.168.0.0/16"].iter().map(|net| net.parse().unwrap()).collect();
    rules.to = ["10.9.0.0/16", "fd00::/8"].iter().map(|net| net.parse().unwrap()).collect();
    rules.reach().unwrap();
    assert!(!rules.script().contains("chain output"), "own programs are not captured");
    assert_eq!(
        lines(&rules),
        [
            r#"iifname "lo" return"#,
            "meta l4proto tcp socket transparent 1 meta mark set 7415 accept",
            "fib daddr type local return",
            "ip daddr 169.254.0.0/16 return",
            "ip6 daddr fe80::/10 return",
            "tcp flags & (fin | syn | rst | ack) != syn return",
            "ip saddr { 10.0.0.0/8, 192.168.0.0/16 } ip daddr 10.9.0.0/16 meta l4proto tcp goto to_listener",
            "chain to_listener {",
            "meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:7415 meta mark set 7415 accept",
            "meta nfproto ipv6 meta l4proto tcp tproxy ip6 to [::1]:7415 meta mark set 7415 accept",
            "meta l4proto tcp reject with tcp reset",
            "chain as_it_is {",
            "type nat hook prerouting priority -101; policy accept;",
            "meta nfproto ipv4 meta l4proto tcp meta mark 7415 dnat ip to ip daddr",
            "meta nfproto ipv6 meta l4proto tcp meta mark 7415 dnat ip6 to ip6 daddr",
        ]
    );
    let options =
        |rules: &Rules| rules.passing_families().iter().map(|family| family.option).collect::<Vec<_>>();
    assert_eq!(options(&rules), ["-4"]);
    assert!(
        rules.words().contains("through this machine from 10.0.0.0/8, 192.168.0.0/16, goes to"),
        "{}",
        rules.words()
    );
    rules.own = true;
    assert!(rules.script().contains("jump to_proxy") && rules.words().contains("own programs as well"));
    rules.from.insert("fd00::/8".parse().unwrap());
    assert_eq!(options(&rules), ["-4", "-6"]);
    rules.to.remove(&"fd00::/8".parse().unwrap());
    assert!(format!("{:?}", rules.reach().unwrap_err()).contains("--to of the same family"));
    rules.at.pop();
    rules.to.clear();
    assert!(format!("{:?}", rules.reach().unwrap_err()).contains("--from fd00::/8"));
}

#[test]
fn networks_without_ports_are_captured_on_every_port() {
    let mut rules = rules(&["127.0.0.1:7415"]);
    rules.to = ["0.0.0.0/0".parse().unwrap()].into();
    assert!(rules.script().contains("ip daddr 0.0.0.0/0 meta l4proto tcp dnat"), "{}", rules.script());
}

#[test]
fn capture_of_proxy_itself_or_of_nothing_is_refused() {
    let of = |uids: &[u32], proxy| {
        let mut rules = rules(&["127.0.0.1:7415"]);
        rules.uids = uids.iter().copied().collect();
        rules.except(proxy).map(|()| rules)
    };
    assert!(format!("{:?}", of(&[0], Some(0)).unwrap_err()).contains("--except-cgroup"));
    assert!(format!("{:?}", of(&[], None).unwrap_err()).contains("--except-uid"));
    assert!(of(&[1000], None).is_ok(), "others were chosen");
    assert!(of(&[], Some(0)).unwrap().words().contains("note: programs of root are not captured"));
    let mut lost = rules(&["127.0.0.1:7415"]);
    lost.to = ["fd00::/8".parse().unwrap()].into();
    assert!(format!("{:?}", lost.reach().unwrap_err()).contains("[::1]:7415"));
}

#[test]
fn invalid_ports_networks_and_listeners_are_refused() {
    for wrong in ["", "0", "90-80", "http", "1-", "65536"] {
        assert!(wrong.parse::<Ports>().is_err(), "{wrong}");
    }
    for wrong in ["", "10.0.0.0/33", "fd00::/129", "10.0.0", "a.b/8", "10.0.0.0/-1"] {
        assert!(wrong.parse::<Network>().is_err(), "{wrong}");
    }
    for wrong in [&["0.0.0.0:7415"][..], &["127.0.0.1:0"], &["127.0.0.1:1", "127.0.0.2:1"]] {
        let at: Vec<_> = wrong.iter().map(|at| at.parse().unwrap()).collect();
        assert!(listener_addresses(&at).is_err(), "{wrong:?}");
    }
}
