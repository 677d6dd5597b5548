//! Three real members of one etcd cluster. Each can be killed and restarted.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use fairmesh_test_support::{call_etcd, free_port};

/// Time limit for operations that normally take moments.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Members {
    folder: tempfile::TempDir,
    members: Vec<Member>,
}

struct Member {
    client: String,
    peer: String,
    process: Option<Child>,
}

impl Members {
    /// Starts all three members, and waits until they have a leader.
    pub(crate) fn start() -> Self {
        let local = || format!("127.0.0.1:{}", free_port());
        let member = |_| Member { client: local(), peer: local(), process: None };
        let members = (0..3).map(member).collect();
        let mut all = Self { folder: tempfile::tempdir().unwrap(), members };
        for i in 0..3 {
            all.restart(i);
        }
        all.leader();
        all
    }

    /// Returns the client addresses, as `host:port`.
    pub(crate) fn clients(&self) -> Vec<&str> {
        self.members.iter().map(|member| &*member.client).collect()
    }

    pub(crate) fn kill(&mut self, i: usize) {
        let mut process = self.members[i].process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Restarts member `i` on the same ports; it rejoins the cluster by itself.
    pub(crate) fn restart(&mut self, i: usize) {
        let cluster: Vec<_> = self
            .members
            .iter()
            .enumerate()
            .map(|(i, member)| format!("m{i}=http://{}", member.peer))
            .collect();
        let (client, peer) =
            (format!("http://{}", self.members[i].client), format!("http://{}", self.members[i].peer));
        let log = std::fs::File::create(self.folder.path().join(format!("log-{i}"))).unwrap();
        let process = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.folder.path().join(format!("data-{i}")))
            .args(["--name", &format!("m{i}"), "--log-level=error"])
            .args(["--heartbeat-interval=50", "--election-timeout=500"])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &cluster.join(",")])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("these tests need etcd; run scripts/setup.sh etcd");
        self.members[i].process = Some(process);
    }

    /// Returns the index of the leader, once all running members agree on it.
    pub(crate) fn leader(&self) -> usize {
        #[allow(clippy::disallowed_methods, reason = "a test gives up after real time")]
        let begun = Instant::now();
        while begun.elapsed() < TIMEOUT {
            let running = self.members.iter().enumerate().filter(|(_, member)| member.process.is_some());
            let mut answers = running.filter_map(|(i, member)| {
                let response = call_etcd(&member.client, "maintenance/status", "{}").ok()?;
                Some((i, field(&response, "member_id")?, field(&response, "leader")?))
            });
            if let Some((leader, ..)) = answers.find(|(_, id, leader)| id == leader) {
                return leader;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("no leader: {:?}", std::fs::read_to_string(self.folder.path().join("log-0")));
    }
}

/// Returns the text of a field in a response from etcd.
fn field(response: &str, name: &str) -> Option<String> {
    let (_, rest) = response.split_once(&format!("\"{name}\":\""))?;
    Some(rest.split_once('"')?.0.to_owned())
}

impl Drop for Members {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut process) = member.process.take() {
                // The member may have exited already; errors do not matter at the end of a test.
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}
