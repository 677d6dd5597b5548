//! JWT-SVIDs from the Workload API of agents, used and verified by go-spiffe.

use std::os::unix::process::CommandExt as _;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use fairmesh_test_support::skipped;
use serde_json::Value;

use super::{
    spiffe::{Rig, USER, run},
    support::{Mesh, wait_until},
};

const WEB: &str = "spiffe://prod/shop/web";

impl Rig {
    /// A token for the audience `pay`.
    fn token(&self, id: &str) -> String {
        self.go(&["jwt", "pay", id]).ok().trim().to_owned()
    }

    /// Whether both go-spiffe and the agent accept a token.
    fn accepts(&self, token: &str) -> bool {
        ["verify", "validate"].map(|how| self.go(&[how, token, "pay"]).code == Some(0)) == [true; 2]
    }
}

fn part(token: &str, number: usize) -> Value {
    let part = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(number).unwrap()).unwrap();
    serde_json::from_slice(&part).unwrap()
}

#[test]
fn go_spiffe_gets_and_verifies_jwt_svids_of_its_identities() {
    let Some(rig) = Rig::start() else { return };
    rig.select("shop/web");
    rig.select("bank/cart");
    assert_eq!(rig.go(&["jwts", "pay"]).ok(), format!("spiffe://prod/bank/cart\n{WEB}\n"));
    let token = rig.token(WEB);
    let claims = part(&token, 1);
    assert_eq!((&claims["sub"], &claims["aud"][0]), (&WEB.into(), &"pay".into()));
    assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 300);
    for how in ["verify", "validate"] {
        assert_eq!(rig.go(&[how, &token, "pay"]).ok(), format!("{WEB}\n"));
        let refused = rig.go(&[how, &token, "bank"]).fails(1);
        assert!(refused.contains("aud"), "{refused}");
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let forged = format!("{signed}.{}", signature.chars().rev().collect::<String>());
        rig.go(&[how, &forged, "pay"]).fails(1);
    }
    let refused = rig.go(&["jwt", "pay", "spiffe://prod/shop/other"]).fails(1);
    assert!(refused.contains("no identity issued"), "{refused}");

    wait_until("a token from before the revocation is refused", || {
        rig.mesh.run(&["identity", "revoke", "shop/web", "--issued-before", "now"]).ok();
        rig.go(&["validate", &token, "pay"]).code != Some(0)
    });
    wait_until("a newer token is accepted", || rig.accepts(&rig.token(WEB)));

    if !rustix::process::geteuid().is_root() {
        return skipped("programs cannot be run as another user", "this is not root");
    }
    let mut other = rig.command(&["jwt", "pay"]);
    other.uid(USER).gid(USER);
    let refused = run(other).fails(1);
    assert!(refused.contains("PermissionDenied") && refused.contains("no identity issued"), "{refused}");
}

#[test]
fn keys_of_jwt_svids_are_rotated_and_withdrawn() {
    let Some(rig) = Rig::start() else { return };
    rig.select("shop/web");
    let (_watch, printed) = rig.running(&["watch-jwt"]);
    printed.line(|line| line == "prod 1");
    let before = rig.token(WEB);
    rig.mesh.run(&["identity", "rotate"]).ok();
    printed.line(|line| line == "prod 2");
    assert!(rig.accepts(&before));
    let keys = rig.mesh.run(&["identity", "show", "--json"]).json()["jwtKeys"].clone();
    assert_eq!(part(&before, 0)["kid"], keys[0]["kid"], "the other one does not sign yet");
    assert_eq!(keys.as_array().unwrap().len(), 2);
    rig.mesh.run(&["identity", "rotate", "--force"]).ok();
    printed.line(|line| line == "prod 1");
    assert!(!rig.accepts(&before), "its key was withdrawn");
    let after = rig.token(WEB);
    assert!(rig.accepts(&after));
    let document = format!("http://{}/v1/trust-bundle", rig.mesh.pages());
    assert_eq!(rig.go(&["document", &document, "prod"]).ok(), "1 1\n");
}

#[test]
fn jwt_svids_of_federated_domain_are_verified_by_its_bundle_endpoint() {
    let Some(rig) = Rig::start() else { return };
    let mut partner = Mesh::empty();
    partner.arguments = ["--trust-domain", "partner"].map(String::from).to_vec();
    partner.start_control();
    let (_agent, agent) = super::identities::agent(&partner, "web-2", &partner.address(), None);
    wait_until("the partner's agent joins", || super::identities::has_certificate(&partner, "web-2"));
    let mut command = rig.command(&["jwt", "pay"]);
    command.env("SPIFFE_ENDPOINT_SOCKET", &agent);
    let token = run(command).ok().trim().to_owned();
    let refused = rig.go(&["validate", &token, "pay"]).fails(1);
    assert!(refused.contains("not federated with partner"), "{refused}");
    let bundle = format!("http://{}/v1/trust-bundle", partner.pages());
    rig.mesh.run(&["identity", "federation", "add", "partner", "--bundle", &bundle]).ok();
    wait_until("tokens of the partner are accepted", || rig.accepts(&token));
    rig.mesh.run(&["identity", "federation", "remove", "partner"]).ok();
    wait_until("tokens of the partner are refused", || !rig.accepts(&token));
}
