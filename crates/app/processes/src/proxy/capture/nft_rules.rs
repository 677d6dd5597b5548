//! The captured connections, and the nftables rules for them.

use std::{collections::BTreeSet, fmt::Write as _, net::SocketAddr};

use fairmesh_console::failure::Failure;

use super::port_and_network_args::{FAMILIES, Family, HTTP, Network, Ports, list};

/// Name of our table. It contains all our rules, so removing it removes them all. Only routes exist outside it.
pub(super) const TABLE: &str = "inet fairmesh_capture";
/// Mark of packets to foreign destinations that are delivered locally. Also the number of their routing table.
pub(super) const MARK: u32 = 7415;

/// A cgroup, as named in rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cgroup {
    /// Path below /sys/fs/cgroup.
    pub(super) path: String,
    /// Depth below the root of its hierarchy.
    pub(super) level: usize,
}

/// What the rules capture.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    /// Addresses of the proxy's listeners, at most one per family.
    pub(super) at: Vec<SocketAddr>,
    pub(super) ports: Vec<Ports>,
    pub(super) to: BTreeSet<Network>,
    /// Sources of forwarded connections to capture.
    pub(super) from: BTreeSet<Network>,
    /// Whether connections of this machine's own programs are captured, in addition to forwarded ones.
    pub(super) own: bool,
    /// Users whose connections are captured. Without users and cgroups, all connections are.
    pub(super) uids: BTreeSet<u32>,
    pub(super) cgroups: Vec<Cgroup>,
    pub(super) except_uids: BTreeSet<u32>,
    pub(super) except_cgroups: Vec<Cgroup>,
    pub(super) loopback: bool,
}

impl Rules {
    /// Checks that every address family has a listener and every source has a destination.
    pub(super) fn reach(&self) -> Result<(), Failure> {
        let named =
            self.to.iter().map(|net| ("--to", net)).chain(self.from.iter().map(|net| ("--from", net)));
        let mut lost =
            named.filter(|(_, net)| !self.at.iter().any(|at| at.is_ipv4() == net.address.is_ipv4()));
        if let Some((option, net)) = lost.next() {
            return Err(Failure::refused(
                format!(
                    "{option} {net}: no --at is of its family, so there is no listener to redirect it to"
                ),
                "give --at 127.0.0.1:7415 and --at [::1]:7415, and the proxy a listener at each",
            ));
        }
        let mut aimless = self.from.iter().filter(|net| self.targets(net.address.is_ipv4()).is_empty());
        match aimless.next() {
            None => Ok(()),
            Some(net) => Err(Failure::refused(
                format!("--from {net}: no --to is of its family, so nothing from there would be captured"),
                "give a --to of the same family, or none at all",
            )),
        }
    }

    /// Excludes the proxy itself. `proxy` is the user of its listener.
    pub(super) fn except(&mut self, proxy: Option<u32>) -> Result<(), Failure> {
        if !self.takes_own() || !self.cgroups.is_empty() || !self.except_cgroups.is_empty() {
            return Ok(());
        }
        match proxy {
            Some(proxy) if self.uids.contains(&proxy) => Err(Failure::refused(
                format!("--uid {proxy}: the proxy runs as the same user, and would capture itself"),
                "run it as a user of its own, or name its cgroup with --except-cgroup",
            )),
            Some(proxy) => {
                self.except_uids.insert(proxy);
                Ok(())
            }
            None if self.uids.is_empty() && self.except_uids.is_empty() => Err(Failure::refused(
                format!(
                    "no proxy listens at {}, so that all captured connections would fail",
                    list(&self.at)
                ),
                "start 'fairmesh proxy --listen capture:IP:PORT' first, or give its user: --except-uid USER",
            )),
            None => Ok(()),
        }
    }

    /// Whether connections of this machine's own programs are captured.
    fn takes_own(&self) -> bool {
        self.own || self.from.is_empty() || !self.uids.is_empty() || !self.cgroups.is_empty()
    }

    /// Returns the nft script that replaces earlier rules in one transaction.
    pub(super) fn script(&self) -> String {
        let mut text = format!("table {TABLE}\ndelete table {TABLE}\n\ntable {TABLE} {{");
        if self.takes_own() {
            self.own_programs(&mut text);
        }
        if !self.from.is_empty() {
            self.passing(&mut text);
        }
        text.push_str("}\n");
        text
    }

    /// Writes the rules for connections of this machine's own programs, which are redirected.
    fn own_programs(&self, text: &mut String) {
        text.push_str("\n\tchain output {\n\t\ttype nat hook output priority -100; policy accept;\n");
        if !self.loopback {
            text.push_str("\t\toifname \"lo\" return\n");
        }
        // Writing to a String cannot fail.
        for (from, verdict) in [
            (from(&self.except_uids, &self.except_cgroups), "return"),
            (from(&self.uids, &self.cgroups), "jump to_proxy"),
        ] {
            for from in from {
                let _ = writeln!(text, "\t\t{from} {verdict}");
            }
        }
        if self.uids.is_empty() && self.cgroups.is_empty() {
            text.push_str("\t\tjump to_proxy\n");
        }
        text.push_str("\t}\n\n\tchain to_proxy {\n");
        for at in &self.at {
            let family = if at.is_ipv4() { "ip" } else { "ip6" };
            for to in self.targets(at.is_ipv4()) {
                let _ = writeln!(text, "\t\t{to} {} dnat {family} to {at}", self.ports());
            }
        }
        text.push_str("\t}\n");
    }

    /// Rules for forwarded connections: intercepted with their addresses unchanged (TPROXY). Redirection would need a
    /// listener at an address that the other machines can reach, and that anyone could call. Existing connections
    /// continue unchanged. Connections without a listener are refused, as those of this machine's programs are.
    fn passing(&self, text: &mut String) {
        passing_on(text);
        if !self.loopback {
            text.push_str("\t\tfib daddr type local return\n");
        }
        // Link-local services of a network, such as a metadata server with credentials, must not be requested by this
        // router on behalf of another machine.
        text.push_str("\t\tip daddr 169.254.0.0/16 return\n\t\tip6 daddr fe80::/10 return\n");
        // Packets other than SYN belong to an existing connection, or come from outside.
        text.push_str("\t\ttcp flags & (fin | syn | rst | ack) != syn return\n");
        for family in self.passing_families() {
            let from = self.from.iter().filter(|net| net.address.is_ipv4() == family.is_ipv4);
            let (from, ports) = (list(from), self.ports());
            // Writing to a String cannot fail.
            for to in self.targets(family.is_ipv4) {
                let _ =
                    writeln!(text, "\t\t{} saddr {{ {from} }} {to} {ports} goto to_listener", family.keyword);
            }
        }
        text.push_str("\t}\n\n\tchain to_listener {\n");
        for at in &self.at {
            let (family, nfproto) = if at.is_ipv4() { ("ip", "ipv4") } else { ("ip6", "ipv6") };
            let _ = writeln!(
                text,
                "\t\tmeta nfproto {nfproto} meta l4proto tcp tproxy {family} to {at} meta mark set {MARK} accept"
            );
        }
        text.push_str("\t\tmeta l4proto tcp reject with tcp reset\n\t}\n");
        // Other DNAT rules, such as those of Kubernetes services, would redirect intercepted connections, since the
        // first DNAT rule wins.
        text.push_str("\n\tchain as_it_is {\n\t\ttype nat hook prerouting priority -101; policy accept;\n");
        for (family, nfproto) in [("ip", "ipv4"), ("ip6", "ipv6")] {
            let _ = writeln!(
                text,
                "\t\tmeta nfproto {nfproto} meta l4proto tcp meta mark {MARK} dnat {family} to {family} daddr"
            );
        }
        text.push_str("\t}\n");
    }

    /// Address families of the forwarded connections that are captured.
    pub(super) fn passing_families(&self) -> Vec<Family> {
        let has = |family: &Family| self.from.iter().any(|net| net.address.is_ipv4() == family.is_ipv4);
        FAMILIES.into_iter().filter(has).collect()
    }

    fn targets(&self, ipv4: bool) -> Vec<String> {
        let (named, family) = if ipv4 { ("ip", "ipv4") } else { ("ip6", "ipv6") };
        if self.to.is_empty() {
            return vec![format!("meta nfproto {family}")];
        }
        let of_family = self.to.iter().filter(|net| net.address.is_ipv4() == ipv4);
        of_family.map(|net| format!("{named} daddr {net}")).collect()
    }

    fn ports(&self) -> String {
        match (&*self.ports, self.to.is_empty()) {
            ([], true) => format!("tcp dport {HTTP}"),
            ([], false) => "meta l4proto tcp".into(),
            (ports, _) => format!("tcp dport {{ {} }}", list(ports)),
        }
    }

    /// Describes the captured connections in words.
    pub(super) fn words(&self) -> String {
        let ports = match (&*self.ports, self.to.is_empty()) {
            ([], true) => "port 80".into(),
            ([], false) => "every port".into(),
            (ports, _) => format!("port {}", list(ports)),
        };
        let mut words = format!("captured: TCP to {ports}");
        let mut add = |what: &str, of: String| {
            if !of.is_empty() {
                let _ = write!(words, "{what}{of}");
            }
        };
        add(" of ", list(&self.to));
        add(", by ", people(&self.uids, &self.cgroups));
        add(", through this machine from ", list(&self.from));
        add(", goes to ", list(&self.at));
        add("; not by ", people(&self.except_uids, &self.except_cgroups));
        if !self.from.is_empty() {
            words.push_str(if self.own { "; by this machine's own programs as well" } else { "" });
            words.push_str(
                "\nforwarded connections need a listener with +transparent, and are refused without one",
            );
        }
        words.push_str("\nundo it with 'fairmesh proxy capture --undo'");
        if self.except_uids.contains(&0) {
            words.push_str("\nnote: programs of root are not captured, since the proxy is root; run it as a user of its own");
        }
        words
    }
}

/// Returns rules that capture nothing new, but keep captured connections working.
pub(super) fn rest() -> String {
    let mut text = format!("table {TABLE}\ndelete table {TABLE}\n\ntable {TABLE} {{");
    // Redirected connections are translated as long as some rule uses connection tracking.
    text.push_str("\n\tchain output {\n\t\ttype nat hook output priority -100; policy accept;\n");
    text.push_str("\t\tct state established accept\n\t}\n");
    passing_on(&mut text);
    text.push_str("\t}\n}\n");
    text
}

/// Writes the start of the chain for forwarded connections: the rule for connections that are already captured.
fn passing_on(text: &mut String) {
    text.push_str("\n\tchain passing {\n\t\ttype filter hook prerouting priority mangle; policy accept;\n");
    text.push_str("\t\tiifname \"lo\" return\n");
    // Writing to a String cannot fail.
    let _ = writeln!(text, "\t\tmeta l4proto tcp socket transparent 1 meta mark set {MARK} accept");
}

/// Returns conditions on the owner of a connection; one of them must hold.
fn from(uids: &BTreeSet<u32>, cgroups: &[Cgroup]) -> Vec<String> {
    let uids = (!uids.is_empty()).then(|| format!("meta skuid {{ {} }}", list(uids)));
    let cgroup = |Cgroup { path, level }: &Cgroup| format!("socket cgroupv2 level {level} \"{path}\"");
    uids.into_iter().chain(cgroups.iter().map(cgroup)).collect()
}

fn people(uids: &BTreeSet<u32>, cgroups: &[Cgroup]) -> String {
    let uids = uids.iter().map(|uid| format!("uid {uid}"));
    let all: Vec<_> = uids.chain(cgroups.iter().map(|cgroup| format!("cgroup {}", cgroup.path))).collect();
    all.join(" or ")
}

/// Returns the listeners of captured connections.
pub(super) fn listener_addresses(at: &[SocketAddr]) -> Result<Vec<SocketAddr>, Failure> {
    for (number, place) in at.iter().enumerate() {
        if place.ip().is_unspecified() || place.port() == 0 {
            let problem = format!("--at {place}: connections cannot be redirected to it");
            return Err(Failure::refused(problem, "give one address and port, such as 127.0.0.1:7415"));
        }
        if at[..number].iter().any(|other| other.is_ipv4() == place.is_ipv4()) {
            let problem = format!("--at {place}: another --at is of the same family");
            return Err(Failure::refused(problem, "give one for IPv4, one for IPv6, or one of each"));
        }
    }
    Ok(at.to_vec())
}

#[cfg(test)]
mod tests;
