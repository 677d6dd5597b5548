//! Ways to reach the test program: directly at `--inbound`, or through a client-side proxy listener.

use fairmesh_test_support::free_port;

use super::program;
use crate::cli::{
    identities::{Killed, agent, domain, has_certificate, start},
    support::{Agent, Mesh, wait_until},
};

/// A path to the program, and its first address.
pub(super) struct Form {
    pub(super) name: &'static str,
    pub(super) address: String,
}

/// A mesh with a program registered by `register` and by `proxy --inbound`, and a proxy for clients of both.
pub(super) struct Forms {
    pub(super) forms: Vec<Form>,
    _mesh: Mesh,
    _agent: Option<Agent>,
    _processes: Vec<Killed>,
}

impl Forms {
    /// Plaintext; `--inbound` is also reached without another proxy.
    pub(super) fn plain() -> Self {
        let mesh = Mesh::start();
        let agent = mesh.agent("eu");
        let address = agent.address();
        Self { _agent: Some(agent), ..Self::start(mesh, &address, vec![], true) }
    }

    /// Mutual TLS, which only members of the mesh can use.
    pub(super) fn mutual_tls() -> Self {
        let (mesh, _) = domain();
        let (process, address) = agent(&mesh, "web-1", &mesh.address(), None);
        wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
        Self::start(mesh, &address, vec![process], false)
    }

    fn start(mesh: Mesh, agent: &str, mut processes: Vec<Killed>, direct: bool) -> Self {
        let program = format!("127.0.0.1:{}", program::start());
        let local = || format!("127.0.0.1:{}", free_port());
        let [inbound, to_inbound, to_register] = [(); 3].map(|()| local());
        let spec = format!("shop/inbound@{inbound}={program}");
        let proxy = ["proxy", "--agent", agent, "--admin", "none", "--listen"];
        processes.push(start(&[&proxy[..], &["none", "--inbound", &spec]].concat(), None));
        processes.push(start(&["register", "shop/register", "--agent", agent, "--address", &program], None));
        let listen = [&to_inbound, &to_register].map(|address| address.as_str());
        let listen = [format!("{}=shop/inbound", listen[0]), format!("{}=shop/register", listen[1])];
        processes.push(start(&[&proxy[..], &[&listen[0], "--listen", &listen[1]]].concat(), None));
        let mut forms = vec![
            Form { name: "a listener before --inbound", address: to_inbound },
            Form { name: "a listener before register", address: to_register },
        ];
        if direct {
            forms.push(Form { name: "--inbound", address: inbound });
        }
        for form in &forms {
            let begins = || super::messages::curl(&form.address, &["--http1.1"], "/").contains("200 ok");
            wait_until("the program is reached", begins);
        }
        Self { forms, _mesh: mesh, _agent: None, _processes: processes }
    }
}
