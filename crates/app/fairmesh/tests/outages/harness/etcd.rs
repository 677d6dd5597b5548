use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    time::Duration,
};

use serde_json::Value;

use super::{Daemon, Host, Network, Place, Plan, until};

/// Time limit of a member's response about its state.
const PATIENCE: Duration = Duration::from_secs(10);

/// A cluster of three members, each on its own host.
pub(crate) struct Etcd {
    pub(crate) members: Vec<Member>,
    /// Host from which requests to the members are sent.
    asker: Host,
}

pub(crate) struct Member {
    pub(crate) daemon: Daemon,
    pub(crate) host: Host,
}

impl Etcd {
    pub(crate) fn start(network: &Network, folder: &Path, asker: &Host) -> Self {
        let names = ["etcd-1", "etcd-2", "etcd-3"];
        let hosts = names.map(|name| network.host(name, Place::Core));
        let peers: Vec<_> = names
            .iter()
            .zip(&hosts)
            .map(|(name, host)| format!("{name}=http://{}:2380", host.address))
            .collect();
        let start = |(name, host): (&str, &Host)| {
            let (address, data) = (host.address, folder.join(name));
            let arguments = format!(
                "--name={name} --data-dir={} --log-level=error --initial-cluster={} \
                 --listen-client-urls=http://{address}:2379 --advertise-client-urls=http://{address}:2379 \
                 --listen-peer-urls=http://{address}:2380 --initial-advertise-peer-urls=http://{address}:2380 \
                 --max-txn-ops=10001 --max-request-bytes=8388608",
                data.display(),
                peers.join(",")
            );
            let plan = Plan::new(folder.join(format!("{name}.log")), "etcd", &arguments);
            Member { daemon: Daemon::start(host, plan), host: host.clone() }
        };
        let members = names.into_iter().zip(&hosts).map(start).collect();
        let etcd = Self { members, asker: asker.clone() };
        etcd.leader();
        etcd
    }

    /// Addresses of the members, as an argument of a control plane.
    pub(crate) fn addresses(&self) -> String {
        let members: Vec<_> =
            self.members.iter().map(|member| format!("{}:2379", member.host.address)).collect();
        members.join(",")
    }

    /// Waits for a leader; returns its index.
    pub(crate) fn leader(&self) -> usize {
        let mut leader = None;
        until("etcd has a leader", || {
            leader = self.members.iter().position(|member| {
                let status = self.ask(member, "maintenance/status", "{}");
                status.is_some_and(|status| {
                    status["leader"].is_string() && status["leader"] == status["header"]["member_id"]
                })
            });
            leader.is_some()
        });
        leader.unwrap()
    }

    /// Waits until every member runs and knows the leader.
    pub(crate) fn is_whole(&self) {
        until("every member of etcd knows its leader", || {
            self.members.iter().all(|member| {
                let status = self.ask(member, "maintenance/status", "{}");
                status.is_some_and(|status| status["leader"].is_string())
            })
        });
    }

    /// Compacts all history up to now.
    pub(crate) fn compact(&self) {
        let leader = &self.members[self.leader()];
        let status = self.ask(leader, "maintenance/status", "{}").unwrap();
        let revision = status["header"]["revision"].as_str().unwrap();
        let body = format!(r#"{{"revision": "{revision}"}}"#);
        self.ask(leader, "kv/compaction", &body).expect("it compacts");
    }

    /// Response of a member over HTTP; `None` if the member does not answer or refuses.
    fn ask(&self, member: &Member, path: &str, body: &str) -> Option<Value> {
        let address = (member.host.address, 2379).into();
        let answer = self.asker.within(|| -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let length = body.len();
            write!(
                stream,
                "POST /v3/{path} HTTP/1.0\r\nhost: etcd\r\ncontent-length: {length}\r\n\r\n{body}"
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        });
        let answer = answer.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.split(' ').nth(1).filter(|code| *code == "200")?;
        serde_json::from_str(body).ok()
    }
}
