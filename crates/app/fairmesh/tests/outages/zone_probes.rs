//! Agents of three regions probe each other. A cut between two regions must show in those regions' cells of the matrix
//! only.

use std::{collections::BTreeMap, process::Command, time::Duration};

use fairmesh_test_support::{eventually_within, skipped};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Daemon, Host, Network, Place, Plan, until};

/// Longest time until a cut shows.
const IN_TIME: Duration = Duration::from_secs(15);
const REGIONS: [(&str, Place); 3] = [("ap", Place::Core), ("eu", Place::Eu), ("us", Place::Us)];

/// Verdicts by pair of regions, such as `eu-us`.
type Matrix = BTreeMap<String, String>;

struct ProbedMesh {
    control: Host,
    agents: Vec<Host>,
    _daemons: Vec<Daemon>,
    _network: Network,
    _folder: TempDir,
}

impl ProbedMesh {
    /// # Errors
    /// Why this machine cannot be made into several.
    fn start() -> Result<Self, String> {
        let network = Network::new()?;
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().display();
        let log = |name: &str| folder.path().join(format!("{name}.log"));
        let control = network.host("board", Place::Core);
        let address = control.address;
        let arguments = format!(
            "control --trust-domain none --grpc {address}:7400 --admin {address}:7401 --data-dir {dir}/data"
        );
        let mut daemons = vec![Daemon::start(&control, Plan::fairmesh(log("control"), &arguments))];
        let mut agents = Vec::new();
        for (region, place) in REGIONS {
            let host = network.host(&format!("{region}-agent"), place);
            let arguments = format!(
                "agent --region {region} --zone a --name {region} --admin none --control {address}:7400 \
                 --listen unix:{dir}/{region}.sock --state-dir {dir}/{region} --zone-probes {}:7405",
                host.address
            );
            daemons.push(Daemon::start(&host, Plan::fairmesh(log(region), &arguments)));
            agents.push(host);
        }
        Ok(Self { control, agents, _daemons: daemons, _network: network, _folder: folder })
    }

    /// Output of `fairmesh probe` with these arguments; `None` while no control plane responds.
    fn probe(&self, arguments: &[&str]) -> Option<String> {
        let control = format!("{}:7400", self.control.address);
        let arguments = [&["probe", "--control", &control], arguments].concat();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        let output = self.control.within(|| command.args(&arguments).output().unwrap());
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    fn matrix(&self) -> Matrix {
        let text = self.probe(&["--json"]).unwrap_or_default();
        let pairs: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let cell = |pair: &Value| {
            let [from, to] = ["from", "to"].map(|end| text(&pair[end]["region"]));
            assert!(pair["ageMs"].as_u64().unwrap() < 12_000 || pair["verdict"] == "stale", "{pair}");
            (format!("{from}-{to}"), text(&pair["verdict"]))
        };
        pairs.iter().map(cell).collect()
    }

    /// Pairs that do not pass; `None` while a pair is missing.
    fn not_passing(&self) -> Option<Vec<String>> {
        let matrix = self.matrix();
        let bad = matrix.iter().filter(|(_, verdict)| *verdict != "passing");
        (matrix.len() == REGIONS.len() * (REGIONS.len() - 1))
            .then(|| bad.map(|(pair, _)| pair.clone()).collect())
    }
}

#[test]
fn network_cut_between_two_regions_shows_only_in_their_zone_probes() {
    let mesh = match ProbedMesh::start() {
        Ok(mesh) => mesh,
        Err(reason) => return skipped("hosts cannot be made", reason),
    };
    until("every pair of regions passes", || mesh.not_passing().is_some_and(|pairs| pairs.is_empty()));
    let [_, eu, us] = &mesh.agents[..] else { panic!("three regions") };
    let reach = |reached| {
        eu.reach(us, reached);
        us.reach(eu, reached);
    };
    reach(false);
    let cut = ["eu-us", "us-eu"];
    let shows = eventually_within(IN_TIME, || {
        let bad = mesh.not_passing().unwrap();
        assert!(bad.iter().all(|pair| cut.contains(&&**pair)), "{bad:?}");
        bad == cut
    });
    assert!(shows, "the cut does not show within {IN_TIME:?}: {:?}", mesh.matrix());
    let table = mesh.probe(&["--failing"]).unwrap();
    assert!(table.contains("failing (tcp)") && !table.contains("ap/a"), "{table}");
    reach(true);
    let passes = eventually_within(IN_TIME, || mesh.not_passing().is_some_and(|pairs| pairs.is_empty()));
    assert!(passes, "{:?}", mesh.matrix());
}
