use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    rsa::KeySize,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
        RsaKeyPair,
    },
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use fairmesh_identity::Clock;
use fairmesh_test_support::eventually_async;
use fairmesh_wire::transport::BearerToken;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
};
use tonic::Code;

use super::*;

/// The current time in all tests, in seconds since 1970.
const NOW: u64 = 1_800_000_000;
const ISSUER: &str = "https://idp.example";

#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Duration {
        Duration::from_secs(NOW)
    }
}

/// A key of the issuer.
enum Key {
    Ed(Ed25519KeyPair),
    Ec(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl Key {
    fn ed() -> Self {
        Self::Ed(Ed25519KeyPair::generate().unwrap())
    }

    fn ec() -> Self {
        Self::Ec(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    fn rsa(size: KeySize) -> Self {
        Self::Rsa(RsaKeyPair::generate(size).unwrap())
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Ed(_) => "EdDSA",
            Self::Ec(_) => "ES256",
            Self::Rsa(_) => "RS256",
        }
    }

    fn public(&self) -> Vec<u8> {
        match self {
            Self::Ed(key) => key.public_key().as_ref().to_vec(),
            Self::Ec(key) => key.public_key().as_ref().to_vec(),
            Self::Rsa(key) => key.public_key().as_ref().to_vec(),
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Ed(key) => key.sign(message).as_ref().to_vec(),
            Self::Ec(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
        }
    }

    /// The key as a JWKS entry.
    fn jwk(&self, id: &str) -> Value {
        let public = self.public();
        match self {
            Self::Ed(_) => json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "x": BASE64.encode(public) }),
            Self::Ec(_) => json!({
                "kty": "EC", "crv": "P-256", "kid": id, "use": "sig",
                "x": BASE64.encode(&public[1..33]), "y": BASE64.encode(&public[33..]),
            }),
            Self::Rsa(key) => {
                let key = key.public_key();
                let [n, e] = [key.modulus(), key.exponent()]
                    .map(|number| BASE64.encode(number.big_endian_without_leading_zero()));
                json!({ "kty": "RSA", "alg": "RS256", "use": "sig", "kid": id, "n": n, "e": e })
            }
        }
    }

    fn token(&self, id: &str, claims: &Value) -> String {
        assemble(&json!({ "alg": self.algorithm(), "kid": id, "typ": "JWT" }), claims, |message| {
            self.sign(message)
        })
    }
}

fn assemble(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let [header, claims] = [header, claims].map(|part| BASE64.encode(part.to_string()));
    let message = format!("{header}.{claims}");
    let signature = BASE64.encode(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn set(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

/// The claims of a valid token, with those in `others` replaced.
fn claims(others: Value) -> Value {
    let mut claims = json!({
        "iss": ISSUER, "aud": "fairmesh", "sub": "alice", "groups": ["sre", "oncall"], "exp": NOW + 300, "nbf": NOW - 10,
    });
    for (claim, value) in others.as_object().unwrap() {
        claims[claim] = value.clone();
    }
    claims
}

fn config(jwks: JwksLocation) -> OidcConfig {
    OidcConfig {
        issuer: ISSUER.into(),
        client_id: "fairmesh".into(),
        jwks,
        ca_file: None,
        username_claim: OidcConfig::USERNAME_CLAIM.into(),
        groups_claim: OidcConfig::GROUPS_CLAIM.into(),
    }
}

async fn verifier(config: &OidcConfig) -> Verifier {
    let keys = KeySource::new(config.jwks.clone(), None);
    keys.load_file().await.unwrap();
    Verifier { expected: config.into(), keys, clock: Arc::new(Stopped) }
}

/// A verifier whose key file contains these keys.
async fn with_keys(keys: &[Value]) -> (tempfile::TempDir, PathBuf, Verifier) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jwks.json");
    fs::write(&path, set(keys)).unwrap();
    let verifier = verifier(&config(JwksLocation::File(path.clone()))).await;
    (folder, path, verifier)
}

async fn refused(verifier: &Verifier, token: &str) -> String {
    let status = verifier.user(token).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    assert!(token.len() < 20 || !status.message().contains(token), "no error shows a token");
    status.message().to_owned()
}

#[tokio::test]
async fn user_token_signed_by_each_kind_of_key_names_its_user() {
    let keys = [Key::ed(), Key::ec(), Key::rsa(KeySize::Rsa2048)];
    let ids = ["ed", "ec", "rsa"];
    let jwks: Vec<_> = keys.iter().zip(ids).map(|(key, id)| key.jwk(id)).collect();
    let (_folder, _, verifier) = with_keys(&jwks).await;
    for (key, id) in keys.iter().zip(ids) {
        let user = verifier.user(&key.token(id, &claims(json!({})))).await.unwrap();
        assert_eq!(
            (user.to_string(), user.groups.join(" ")),
            (format!("{ISSUER}#alice"), "sre oncall".into())
        );
        // Without a key id, the only fitting key is used.
        let header = json!({ "alg": key.algorithm() });
        verifier.user(&assemble(&header, &claims(json!({})), |message| key.sign(message))).await.unwrap();
        // The id of another key.
        let other = ids.iter().find(|other| **other != id).unwrap();
        assert!(refused(&verifier, &key.token(other, &claims(json!({})))).await.contains("'kid'"));
    }
    let either =
        claims(json!({ "aud": ["other", "fairmesh"], "groups": "sre", "exp": NOW - 59, "nbf": NOW + 59 }));
    assert_eq!(verifier.user(&keys[0].token("ed", &either)).await.unwrap().groups, ["sre"]);
}

#[tokio::test]
async fn user_token_with_wrong_claim_is_refused_naming_claim() {
    let key = Key::ed();
    let (_folder, _, verifier) = with_keys(&[key.jwk("one")]).await;
    let groups: Vec<_> = (0..257).map(|number| format!("group-{number}")).collect();
    for (wrong, said) in [
        (json!({ "exp": NOW - 60 }), "'exp' says that it expired 60 s ago"),
        (json!({ "exp": NOW - 7200 }), "'exp' says that it expired 2 h ago"),
        (json!({ "exp": null }), "'exp' is no time"),
        (json!({ "exp": "tomorrow" }), "'exp' is no time"),
        (json!({ "exp": -1 }), "'exp' is no time"),
        (json!({ "exp": 1e300 }), "'exp' is no time"),
        (json!({ "nbf": NOW + 61 }), "'nbf' says that it is valid only in 61 s"),
        (json!({ "iss": "https://evil.example" }), "'iss' is not https://idp.example"),
        (json!({ "iss": [ISSUER] }), "'iss' is not"),
        (json!({ "iss": format!("{ISSUER}/") }), "'iss' is not"),
        (json!({ "aud": "other" }), "'aud' does not name fairmesh"),
        (json!({ "aud": [] }), "'aud' does not name fairmesh"),
        (json!({ "aud": null }), "'aud' does not name fairmesh"),
        (json!({ "sub": "" }), "'sub' is empty"),
        (json!({ "sub": 7 }), "'sub' is no text"),
        (json!({ "sub": "alice\nbob" }), "control characters"),
        (json!({ "sub": "x".repeat(513) }), "longer than 512 bytes"),
        (json!({ "groups": groups }), "'groups' has 257 groups, of at most 256"),
        (json!({ "groups": ["sre", 7] }), "'groups' is no text"),
        (json!({ "groups": { "sre": true } }), "'groups' is no text"),
    ] {
        let said_now = refused(&verifier, &key.token("one", &claims(wrong.clone()))).await;
        assert!(said_now.contains(said), "{wrong}: {said_now}");
    }
    for claim in ["exp", "iss", "aud", "sub"] {
        let mut without = claims(json!({}));
        without.as_object_mut().unwrap().remove(claim);
        assert!(refused(&verifier, &key.token("one", &without)).await.contains(&format!("'{claim}'")));
    }
    let mut without = claims(json!({}));
    without.as_object_mut().unwrap().retain(|claim, _| claim != "nbf" && claim != "groups");
    assert!(verifier.user(&key.token("one", &without)).await.unwrap().groups.is_empty());
}

#[tokio::test]
async fn user_token_not_signed_by_issuer_is_refused() {
    let (key, other) = (Key::rsa(KeySize::Rsa2048), Key::rsa(KeySize::Rsa2048));
    let (_folder, _, verifier) = with_keys(&[key.jwk("one")]).await;
    let good = claims(json!({}));
    let token = key.token("one", &good);
    let with_header = |header: Value| assemble(&header, &good, |message| key.sign(message));
    // Without a signature, with several spellings of the algorithm.
    for none in ["none", "None", "NONE", ""] {
        let unsigned = assemble(&json!({ "alg": none, "kid": "one" }), &good, |_| Vec::new());
        assert!(refused(&verifier, &unsigned).await.contains("'alg'"), "{none}");
    }
    // Signed with public information as a shared secret, such as the public key.
    for secret in [key.public(), key.jwk("one").to_string().into_bytes(), Vec::new()] {
        let sign = |message: &[u8]| {
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), message).as_ref().to_vec()
        };
        let header = json!({ "alg": "HS256", "kid": "one" });
        assert!(refused(&verifier, &assemble(&header, &good, sign)).await.contains("'alg'"));
    }
    assert!(refused(&verifier, &other.token("one", &good)).await.contains("signature"));
    assert!(refused(&verifier, &key.token("two", &good)).await.contains("'kid'"));
    assert!(
        refused(&verifier, &with_header(json!({ "alg": "ES256", "kid": "one" }))).await.contains("'kid'")
    );
    // The key requires RS256.
    assert!(
        refused(&verifier, &with_header(json!({ "alg": "RS512", "kid": "one" }))).await.contains("'kid'")
    );
    let critical = json!({ "alg": "RS256", "kid": "one", "crit": ["b64"], "b64": false });
    assert!(refused(&verifier, &with_header(critical)).await.contains("'crit'"));
    // With a key embedded in the token.
    let brought = json!({ "alg": "RS256", "kid": "one", "jwk": other.jwk("one") });
    let brought = assemble(&brought, &good, |message| other.sign(message));
    assert!(refused(&verifier, &brought).await.contains("signature"));
    // Altered in each of its parts.
    let parts: Vec<_> = token.split('.').collect();
    let mallory = BASE64.encode(claims(json!({ "sub": "mallory" })).to_string());
    let mut signature = BASE64.decode(parts[2]).unwrap();
    signature[7] ^= 1;
    let (altered, header) = (BASE64.encode(signature), BASE64.encode(r#"{"alg":"RS256","kid":"one"}"#));
    for altered in
        [[parts[0], &mallory, parts[2]], [parts[0], parts[1], &altered], [&header, parts[1], parts[2]]]
    {
        assert!(refused(&verifier, &altered.join(".")).await.contains("signature"));
    }
    for no_token in ["", "x", "a.b", "a.b.c", "....", &format!("{token}."), &token[1..], &"x".repeat(9000)] {
        refused(&verifier, no_token).await;
    }
    let long = key.token("one", &claims(json!({ "more": "x".repeat(BearerToken::MAX) })));
    assert!(refused(&verifier, &long).await.contains("more than 8192 bytes"));
    verifier.user(&token).await.unwrap();
}

#[tokio::test]
async fn unusable_jwks_keys_are_skipped() {
    let (key, ec, ed) = (Key::rsa(KeySize::Rsa2048), Key::ec(), Key::ed());
    let with = |mut jwk: Value, parameter: &str, value: Value| {
        jwk[parameter] = value;
        jwk
    };
    let secret = BASE64.encode("secret");
    let unusable = [
        json!({ "kty": "oct", "kid": "one", "alg": "HS256", "k": secret }),
        with(key.jwk("one"), "use", json!("enc")),
        with(key.jwk("one"), "alg", json!("RSA-OAEP")),
        with(key.jwk("one"), "key_ops", json!(["sign"])),
        with(ec.jwk("one"), "alg", json!("ES384")),
        with(ec.jwk("one"), "crv", json!("secp256k1")),
        with(ed.jwk("one"), "crv", json!("X25519")),
        json!({ "kty": "LATTICE", "kid": "one" }),
        json!("one"),
    ];
    assert!(KeySet::parse(set(&unusable).as_bytes()).unwrap().is_empty());
    let keys: Vec<_> = unusable.into_iter().chain([ed.jwk("two")]).collect();
    let (_folder, _, verifier) = with_keys(&keys).await;
    verifier.user(&ed.token("two", &claims(json!({})))).await.unwrap();
    assert!(refused(&verifier, &key.token("one", &claims(json!({})))).await.contains("'kid'"));
    for wrong in ["", "[]", "{}", r#"{"keys":{}}"#, &set(&vec![ed.jwk("two"); 101])] {
        assert!(KeySet::parse(wrong.as_bytes()).is_err(), "{wrong}");
    }
    // The key is too short.
    let short = Key::rsa(KeySize::Rsa2048);
    let mut jwk = short.jwk("short");
    jwk["n"] = json!(BASE64.encode([0xff; 128]));
    let (_folder, _, verifier) = with_keys(&[jwk]).await;
    assert!(refused(&verifier, &short.token("short", &claims(json!({})))).await.contains("signature"));
}

#[tokio::test]
async fn email_claim_counts_only_if_issuer_verified_it() {
    let key = Key::ed();
    let (_folder, path, _) = with_keys(&[key.jwk("one")]).await;
    let by_mail = OidcConfig { username_claim: "email".into(), ..config(JwksLocation::File(path)) };
    let verifier = verifier(&by_mail).await;
    let token = |others: Value| key.token("one", &claims(others));
    let said = refused(&verifier, &token(json!({ "email": "a@example", "email_verified": false }))).await;
    assert!(said.contains("'email_verified'"), "{said}");
    for good in [json!({ "email": "a@example", "email_verified": true }), json!({ "email": "a@example" })] {
        assert_eq!(verifier.user(&token(good)).await.unwrap().name, "a@example");
    }
    assert!(refused(&verifier, &token(json!({}))).await.contains("'email' is missing"));
}

#[tokio::test]
async fn changed_jwks_file_is_read_again_and_invalid_one_is_ignored() {
    let (old, new) = (Key::ed(), Key::ed());
    let (_folder, path, verifier) = with_keys(&[old.jwk("old")]).await;
    let [old, new_token] = [old.token("old", &claims(json!({}))), new.token("new", &claims(json!({})))];
    assert!(refused(&verifier, &new_token).await.contains("'kid'"));
    for broken in ["", "{", "{}"] {
        fs::write(&path, broken).unwrap();
        refused(&verifier, &new_token).await;
        verifier.user(&old).await.unwrap();
    }
    fs::remove_file(&path).unwrap();
    refused(&verifier, &new_token).await;
    verifier.user(&old).await.unwrap();
    fs::write(&path, set(&[new.jwk("new")])).unwrap();
    verifier.user(&new_token).await.unwrap();
    assert!(refused(&verifier, &old).await.contains("'kid'"), "a key that is removed counts no more");
    let missing = KeySource::new(JwksLocation::File(path.join("absent")), None);
    assert!(missing.load_file().await.unwrap_err().to_string().contains("give a JWKS"));
}

/// Serves JWKS documents over HTTP, one per request, and repeats the last one. Counts requests.
async fn serve(responses: Vec<String>) -> (JwksLocation, Arc<AtomicUsize>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys?of=mesh", listener.local_addr().unwrap());
    let counted = Arc::new(AtomicUsize::new(0));
    let requests = Arc::clone(&counted);
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            assert!(request.starts_with(b"GET /keys?of=mesh HTTP/1.1\r\n"));
            let response = &responses[requests.fetch_add(1, Relaxed).min(responses.len() - 1)];
            // An error is ignored: the client may have closed the connection after enough bytes.
            let _ = stream.write_all(response.as_bytes()).await;
        }
    });
    (url.parse().unwrap(), counted, serving)
}

fn response(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nlocation: http://127.0.0.1:1/\r\n\r\n{body}")
}

/// Advances the clock by `time`.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn unknown_token_key_causes_jwks_fetch_at_most_every_ten_seconds() {
    let (old, new) = (Key::ed(), Key::ed());
    let ok = |keys: &[Value]| response("200 OK", &set(keys));
    let both = [old.jwk("old"), new.jwk("new")];
    let responses = vec![
        response("500 Internal Server Error", ""),
        ok(&[old.jwk("old")]),
        response("302 Found", &set(&both)),
        response("200 OK", &format!("{}{}", " ".repeat(600_000), set(&both))),
        response("200 OK", "<html>"),
        ok(&both),
    ];
    let (url, requests, _serving) = serve(responses).await;
    let verifier = verifier(&config(url)).await;
    let [old, new, stranger] =
        [(&old, "old"), (&new, "new"), (&new, "stranger")].map(|(key, id)| key.token(id, &claims(json!({}))));
    assert_eq!(verifier.user(&old).await.unwrap_err().code(), Code::Unavailable, "no keys so far");
    pass(Duration::from_secs(11)).await;
    verifier.user(&old).await.unwrap();
    for _ in 0..3 {
        refused(&verifier, &stranger).await;
    }
    assert_eq!(requests.load(Relaxed), 2);
    for wrong in 3..6 {
        pass(Duration::from_secs(11)).await;
        refused(&verifier, &new).await;
        refused(&verifier, &new).await;
        verifier.user(&old).await.unwrap();
        assert_eq!(requests.load(Relaxed), wrong, "the keys before stay in use");
    }
    pass(Duration::from_secs(11)).await;
    verifier.user(&new).await.unwrap();
    assert_eq!(requests.load(Relaxed), 6);
}

#[tokio::test]
async fn replaced_token_key_with_same_id_is_fetched() {
    let (old, new) = (Key::ed(), Key::ed());
    let ok = |key: &Key| response("200 OK", &set(&[key.jwk("one")]));
    let (url, requests, _serving) = serve(vec![ok(&old), ok(&new)]).await;
    let verifier = verifier(&config(url)).await;
    let [old, new] = [&old, &new].map(|key| key.token("one", &claims(json!({}))));
    verifier.user(&old).await.unwrap();
    assert!(refused(&verifier, &new).await.contains("signature"), "keys were fetched just now");
    pass(Duration::from_secs(11)).await;
    verifier.user(&new).await.unwrap();
    assert!(refused(&verifier, &old).await.contains("signature"));
    assert_eq!(requests.load(Relaxed), 2, "a token that nobody signed fetches nothing within ten seconds");
}

#[tokio::test]
async fn tokens_are_refused_once_issuer_withdraws_all_keys() {
    let key = Key::ed();
    let token = key.token("one", &claims(json!({})));
    let secret = json!({ "kty": "oct", "kid": "one", "k": BASE64.encode("secret") });
    for withdrawn in [set(&[]), set(&[secret])] {
        let (_folder, path, verifier) = with_keys(&[key.jwk("one")]).await;
        verifier.user(&token).await.unwrap();
        fs::write(&path, withdrawn).unwrap();
        verifier.keys.load_file().await.unwrap();
        assert!(refused(&verifier, &token).await.contains("'kid'"));
        // An unreadable file does not bring keys back.
        fs::write(&path, "{").unwrap();
        assert!(refused(&verifier, &token).await.contains("'kid'"));
        fs::write(&path, set(&[key.jwk("one")])).unwrap();
        verifier.user(&token).await.unwrap();
    }
}

#[tokio::test]
async fn withdrawn_token_key_is_used_for_one_minute_at_most() {
    let (old, new) = (Key::ed(), Key::ed());
    let ok = |key: &Key, id: &str| response("200 OK", &set(&[key.jwk(id)]));
    let (url, requests, _serving) = serve(vec![ok(&old, "old"), ok(&new, "new")]).await;
    let verifier = Arc::new(verifier(&config(url)).await);
    let old = old.token("old", &claims(json!({})));
    verifier.user(&old).await.unwrap();
    let following = Arc::clone(&verifier);
    let following = tokio::spawn(async move { following.keys.follow().await });
    // Small steps let the task check at each of its intervals.
    for _ in 0..6 {
        pass(Duration::from_secs(10)).await;
        tokio::task::yield_now().await;
    }
    eventually_async("keys are fetched again", async || requests.load(Relaxed) == 2).await;
    eventually_async("the key counts no more", async || verifier.user(&old).await.is_err()).await;
    following.abort();
}

#[tokio::test]
async fn user_token_is_refused_without_protected_connection_or_issuer() {
    let key = Key::ed();
    let (_folder, _, verifier) = with_keys(&[key.jwk("one")]).await;
    let token = key.token("one", &claims(json!({})));
    let none = UserTokens::default();
    let said = none.user(true, &token).await.unwrap_err();
    assert!(said.message().contains("--oidc-issuer-url"), "{said}");
    let tokens = UserTokens(Some(Arc::new(verifier)));
    let said = tokens.user(false, &token).await.unwrap_err();
    assert!(said.message().contains("this connection is plaintext"), "{said}");
    tokens.user(true, &token).await.unwrap();
}
