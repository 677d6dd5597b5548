//! Tests of the authority in its folder.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command, time::Duration};

use fairmesh_identity::{Authority, CLOCK_SKEW, IdentityError, PrivateKey, Reread, Trust, Usage};
use fairmesh_model::TrustDomain;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::support::*;

#[test]
fn certificate_authority_keys_are_private_and_survive_restart() {
    let ca = Ca::default();
    let folder = ca.folder.path().join("ca");
    for (file, mode) in [("", 0o700), ("root.key", 0o600), ("issuer.key", 0o600), ("bundle.pem", 0o644)] {
        let found = fs::metadata(folder.join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{file}");
    }
    let again = Authority::open(&folder, &domain(), now()).unwrap();
    assert_eq!(again.bundle(), ca.authority.bundle());
    assert_eq!(again.issuer(), ca.authority.issuer());
}

#[test]
fn certificate_authority_works_without_root_key() {
    let ca = Ca::default();
    let folder = ca.folder.path().join("ca");
    let vault = ca.folder.path().join("vault");
    fs::rename(folder.join("root.key"), &vault).unwrap();
    let again = Authority::open(&folder, &domain(), now()).unwrap();
    let issuer = again.issuer();
    let key = PrivateKey::generate().unwrap();
    again.issue(&key.signing_request().unwrap(), &id("shop/cart"), now()).unwrap();
    assert!(matches!(again.rotate_issuer(now()), Err(IdentityError::RootKeyAbsent { .. })));
    assert_eq!(again.issuer(), issuer, "nothing has changed");
    fs::rename(vault, folder.join("root.key")).unwrap();
    again.rotate_issuer(now()).unwrap();
    assert_ne!(again.issuer(), issuer);
}

#[test]
fn second_control_plane_creates_its_own_intermediate_certificate() {
    let ca = Ca::default();
    let (first, second) = (ca.folder.path().join("ca"), ca.folder.path().join("second"));
    fs::create_dir(&second).unwrap();
    for file in ["root.key", "bundle.pem"] {
        fs::copy(first.join(file), second.join(file)).unwrap();
    }
    let other = Authority::open(&second, &domain(), now()).unwrap();
    assert_eq!(other.bundle(), ca.authority.bundle());
    assert_ne!(other.issuer(), ca.authority.issuer());
}

#[test]
fn authority_folder_of_another_trust_domain_is_refused() {
    let ca = Ca::default();
    let other = TrustDomain::new("test").unwrap();
    let error = Authority::open(&ca.folder.path().join("ca"), &other, now()).unwrap_err();
    assert!(matches!(error, IdentityError::OtherDomain { .. }), "{error}");
}

#[test]
fn signing_request_not_signed_by_its_key_is_refused() {
    let ca = Ca::default();
    let mut request = PrivateKey::generate().unwrap().signing_request().unwrap();
    *request.last_mut().unwrap() ^= 1;
    let error = ca.authority.issue(&request, &id("shop/cart"), now()).unwrap_err();
    assert!(matches!(error, IdentityError::InvalidRequest(_)), "{error}");
    assert!(ca.authority.issue(b"nonsense", &id("shop/cart"), now()).is_err());
}

#[test]
fn certificates_of_old_and_new_root_are_valid_at_same_time() {
    let ca = Ca::default();
    let before = ca.credentials("shop/cart", now());
    ca.authority.begin_root(now()).unwrap();
    let between = ca.credentials("shop/cart", now());
    ca.authority.rotate_issuer(now()).unwrap();
    let after = ca.credentials("shop/cart", now());
    let (both, old) = (Trust::new(ca.authority.bundle()).unwrap(), before.trust());
    for one in [&before, &between, &after] {
        both.verify(one.chain(), Usage::Client, now()).unwrap();
    }
    old.verify(between.chain(), Usage::Client, now()).unwrap();
    old.verify(after.chain(), Usage::Client, now()).unwrap_err();
}

#[test]
fn new_root_signs_once_all_programs_have_renewed() {
    let ca = Ca::default();
    let begin = now();
    ca.authority.check_next_root(begin).unwrap();
    ca.authority.begin_root(begin).unwrap();
    let learned = begin + 8 * HOUR + CLOCK_SKEW;
    for early in [begin, learned - Duration::from_secs(2)] {
        let error = ca.authority.check_next_root(early).unwrap_err();
        assert!(matches!(error, IdentityError::YoungRoot { .. }), "{error}");
        assert!(error.to_string().contains("--force"), "{error}");
    }
    ca.authority.check_next_root(learned).unwrap();
    // The root already signs, so another intermediate changes nothing.
    ca.authority.rotate_issuer(begin).unwrap();
    ca.authority.check_next_root(begin).unwrap();
}

#[test]
fn intermediate_renewal_waits_until_its_root_is_trusted() {
    let ca = Ca::default();
    let (before, begin) = (ca.authority.issuer(), now() + 150 * 24 * HOUR);
    let open = |now| Authority::open(&ca.folder.path().join("ca"), &domain(), now).unwrap();
    ca.authority.begin_root(begin).unwrap();
    ca.authority.renew_issuer_if_due(begin).unwrap();
    assert_eq!((ca.authority.issuer(), open(begin).issuer()), (before.clone(), before.clone()));
    ca.authority.renew_issuer_if_due(begin + 9 * HOUR).unwrap();
    assert_ne!(ca.authority.issuer(), before);
    assert_eq!(open(begin).issuer(), ca.authority.issuer());

    // Does not wait if the intermediate would expire first.
    let (before, begin) = (ca.authority.issuer(), begin + 180 * 24 * HOUR);
    ca.authority.begin_root(begin).unwrap();
    ca.authority.renew_issuer_if_due(begin).unwrap();
    assert_eq!(ca.authority.issuer(), before, "9 h are left");
    ca.authority.renew_issuer_if_due(begin + HOUR).unwrap();
    assert_ne!(ca.authority.issuer(), before);
}

#[test]
fn failed_root_rotation_changes_nothing() {
    let ca = Ca::default();
    let folder = ca.folder.path().join("ca");
    let (bundle, kept) = (folder.join("bundle.pem"), folder.join("kept.pem"));
    let (root, roots) = (fs::read(folder.join("root.key")).unwrap(), ca.authority.bundle());
    // The list of roots cannot be written, as on a full disk.
    fs::rename(&bundle, &kept).unwrap();
    fs::create_dir_all(bundle.join("in the way")).unwrap();
    ca.authority.begin_root(now()).unwrap_err();
    fs::remove_dir_all(&bundle).unwrap();
    fs::rename(&kept, &bundle).unwrap();
    assert_eq!(ca.authority.bundle(), roots);
    assert_eq!(fs::read(folder.join("root.key")).unwrap(), root, "a root that nobody knows would sign");
    ca.authority.rotate_issuer(now()).unwrap();
    ca.credentials("shop/cart", now());
}

#[test]
fn saved_certificate_is_loaded_until_it_expires() {
    let ca = Ca::default();
    let folder = ca.folder.path().join("kept");
    assert!(fairmesh_identity::Credentials::load(&folder, now()).unwrap().is_none());
    ca.credentials("shop/cart", now()).save(&folder).unwrap();
    let mode = fs::metadata(folder.join("identity.key")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let kept = fairmesh_identity::Credentials::load(&folder, now() + 23 * HOUR).unwrap().unwrap();
    assert_eq!(kept.id(), &id("shop/cart"));
    fairmesh_identity::Credentials::load(&folder, now() + 25 * HOUR).unwrap_err();
}

#[test]
fn certificate_for_another_key_is_refused() {
    let ca = Ca::default();
    let chain: Vec<CertificateDer<'static>> = ca.credentials("shop/cart", now()).chain().to_vec();
    let stolen = fairmesh_identity::Credentials::new(
        PrivateKey::generate().unwrap(),
        chain,
        ca.authority.bundle(),
        now(),
    );
    assert!(stolen.unwrap_err().to_string().contains("another key"));
}

#[test]
fn installed_intermediate_is_used_if_issued_by_trusted_root() {
    let ca = Ca::default();
    let (own, elsewhere) = (ca.folder.path().join("ca"), ca.folder.path().join("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    for file in ["root.key", "bundle.pem"] {
        fs::copy(own.join(file), elsewhere.join(file)).unwrap();
    }
    let next = Authority::open(&elsewhere, &domain(), now()).unwrap();
    let (before, stranger) = (ca.authority.issuer(), Ca::default());
    let put = |from: &Path| fs::copy(from.join("issuer.key"), own.join("issuer.key")).unwrap();
    let reread = || ca.authority.reread_issuer(now());

    put(&stranger.folder.path().join("ca"));
    let error = reread().unwrap_err().to_string();
    assert!(error.contains("was not issued by the trust domain prod"), "{error}");
    assert_eq!(reread().unwrap(), Reread::Unchanged, "it is reported once");
    fs::write(own.join("issuer.key"), "half of a file").unwrap();
    reread().unwrap_err();
    fs::remove_file(own.join("issuer.key")).unwrap();
    assert_eq!(reread().unwrap(), Reread::Unchanged);
    assert_eq!(ca.authority.issuer(), before);

    put(&elsewhere);
    assert_eq!(reread().unwrap(), Reread::Replaced);
    assert_eq!(ca.authority.issuer(), next.issuer());
    let issued = ca.credentials("shop/cart", now());
    let trust = Trust::new(ca.authority.bundle()).unwrap();
    trust.verify(issued.chain(), Usage::Server, now()).unwrap();
    ca.authority.rotate_issuer(now()).unwrap();
    assert_eq!(reread().unwrap(), Reread::Unchanged, "it wrote the file itself");
}

#[test]
fn intermediate_of_external_authority_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let made = |arguments: &str| {
        let run = Command::new("openssl").args(arguments.split(' ')).current_dir(folder.path()).output();
        let run = run.expect("this test needs openssl");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    made(&format!("req -x509 {key} -keyout root.pem -out bundle.pem -days 2 -subj /O=prod/CN=root"));
    made(&format!("req {key} -keyout issuer.pem -out issuer.csr -subj /O=prod/CN=issuer"));
    let extensions = "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign\n";
    fs::write(folder.path().join("extensions"), extensions).unwrap();
    made(
        "x509 -req -in issuer.csr -CA bundle.pem -CAkey root.pem -CAcreateserial -days 1 -extfile extensions \
         -out issuer.crt",
    );
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let ca = folder.path().join("ca");
    fs::create_dir(&ca).unwrap();
    fs::write(ca.join("bundle.pem"), read("bundle.pem")).unwrap();
    fs::write(ca.join("issuer.key"), read("issuer.pem") + &read("issuer.crt")).unwrap();
    let authority = Authority::open(&ca, &domain(), now()).unwrap();
    assert!(!authority.root_key_present());
    let key = PrivateKey::generate().unwrap();
    let issued = authority.issue(&key.signing_request().unwrap(), &id("shop/cart"), now() + HOUR).unwrap();
    let trust = Trust::new(authority.bundle()).unwrap();
    let found = trust.verify(&issued.chain, Usage::Server, now() + HOUR).unwrap();
    assert_eq!(found, id("shop/cart"));
}
