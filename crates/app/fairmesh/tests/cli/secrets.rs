//! No output of a mesh process contains a private key, join token or user token: logs at the finest level, pages,
//! command output, and errors about these very secrets.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    fs::{self, File},
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use fairmesh_test_support::{free_port, skipped, tool};

use super::{
    calls::echo,
    identities::{Killed, has_certificate, token},
    support::{Mesh, wait_until},
    tokens::{ISSUER, Key, http_address, over_tls},
};

/// A secret, with each text form in which it could appear.
struct Secret {
    name: String,
    forms: Vec<Vec<u8>>,
}

/// Prefix by which forms are looked up.
type Begin = [u8; 8];

/// Searches a text for all secrets in one pass, since logs at the finest level are long.
struct Search<'a> {
    /// Whether some form begins with these two bytes.
    begins: Vec<bool>,
    forms: HashMap<Begin, Vec<(&'a Secret, &'a [u8])>>,
}

impl<'a> Search<'a> {
    fn of(secrets: &'a [Secret]) -> Self {
        let mut this = Self { begins: vec![false; 1 << 16], forms: HashMap::new() };
        for (secret, form) in secrets.iter().flat_map(|one| one.forms.iter().map(move |form| (one, form))) {
            this.begins[usize::from(u16::from_be_bytes([form[0], form[1]]))] = true;
            this.forms.entry(form[..8].try_into().unwrap()).or_default().push((secret, form));
        }
        this
    }

    /// Names of the secrets in the text.
    fn find(&self, said: &[u8]) -> BTreeSet<&'a str> {
        // Searched again without line breaks, as in PEM, including those that JSON escapes.
        let mut joined = Vec::with_capacity(said.len());
        let mut bytes = said.iter().copied().peekable();
        while let Some(byte) = bytes.next() {
            if byte == b'\\' && bytes.next_if_eq(&b'n').is_some() || byte.is_ascii_whitespace() {
                continue;
            }
            joined.push(byte);
        }
        let mut found = BTreeSet::new();
        for text in [said, &joined] {
            for (at, begin) in text.windows(8).enumerate() {
                if !self.begins[usize::from(u16::from_be_bytes([begin[0], begin[1]]))] {
                    continue;
                }
                let begin: Begin = begin.try_into().unwrap();
                let forms = self.forms.get(&begin).into_iter().flatten();
                found.extend(
                    forms.filter(|(_, form)| text[at..].starts_with(form)).map(|(one, _)| one.name.as_str()),
                );
            }
        }
        found
    }
}

impl Secret {
    /// Forms of bytes that may be embedded in others: raw, hexadecimal, a list of numbers, and base64 at each of the
    /// three alignments. Half of the bytes is enough for a match.
    fn of_bytes(name: &str, bytes: &[u8]) -> Self {
        let mut forms = Vec::new();
        for half in bytes.chunks(bytes.len() / 2).filter(|half| half.len() >= 16) {
            let hexadecimal: String = half.iter().map(|byte| format!("{byte:02x}")).collect();
            forms.push(half.to_vec());
            forms.push(half.escape_ascii().to_string().into_bytes());
            forms.push(half.iter().map(u8::to_string).collect::<Vec<_>>().join(",").into_bytes());
            forms.extend([hexadecimal.to_uppercase().into_bytes(), hexadecimal.into_bytes()]);
            for before in 0..3 {
                // Only whole base64 groups of the half; the groups at its ends depend on neighbouring bytes.
                let inner = &half[(3 - before) % 3..];
                let inner = &inner[..inner.len() / 3 * 3];
                forms.extend([
                    BASE64_STANDARD.encode(inner).into_bytes(),
                    BASE64_URL_SAFE_NO_PAD.encode(inner).into_bytes(),
                ]);
            }
        }
        Self { name: name.to_owned(), forms }
    }

    fn is_in(&self, said: &[u8]) -> bool {
        !Search::of(std::slice::from_ref(self)).find(said).is_empty()
    }

    /// The secret number of a P-256 private key, from a PKCS #8 PEM file.
    fn of_key(name: &str, pem: &str) -> Self {
        let body = pem.split("PRIVATE KEY-----").nth(1).unwrap().trim_end_matches("-----END ");
        let der = BASE64_STANDARD.decode(body.split_whitespace().collect::<String>()).unwrap();
        // Version 1 of an ECPrivateKey (RFC 5915), and an octet string of 32 bytes.
        let begin = der.windows(5).position(|at| at == [2, 1, 1, 4, 32]).expect("a key on P-256") + 5;
        Self::of_bytes(name, &der[begin..begin + 32])
    }

    /// The secret part of a join token.
    fn of_token(name: &str, token: &str) -> Self {
        let encoded = token.strip_prefix("fairmesh-join-").unwrap();
        Self::of_bytes(name, &BASE64_URL_SAFE_NO_PAD.decode(encoded).unwrap()[8..40])
    }

    /// The signature of a user token, without which the rest is useless.
    fn of_jwt(name: &str, token: &str) -> Self {
        let signature = token.rsplit('.').next().unwrap();
        Self::of_bytes(name, &BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap())
    }
}

/// A mesh with all kinds of processes, and all output of processes and commands.
struct World {
    mesh: Mesh,
    control: String,
    agent: String,
    secrets: Vec<Secret>,
    said: RefCell<Vec<(String, Vec<u8>)>>,
    logs: Vec<String>,
    processes: Vec<Killed>,
}

fn local() -> String {
    format!("127.0.0.1:{}", free_port())
}

impl World {
    fn start(key: &Key) -> Self {
        let control = local();
        let mut mesh = Mesh::empty();
        let jwks = mesh.file("jwks.json", &key.jwks());
        let issuer = ["--oidc-issuer-url", ISSUER, "--oidc-client-id", "fairmesh", "--oidc-jwks", &jwks];
        let arguments = ["--trust-domain", "prod", "--grpc", &control, "--log", "trace"];
        mesh.arguments = [&arguments[..], &issuer].concat().into_iter().map(String::from).collect();
        mesh.start_control();
        let agent = format!("unix:{}", mesh.path("web-1.sock").display());
        let (secrets, said, processes) = (Vec::new(), RefCell::default(), Vec::new());
        Self { mesh, control, agent, secrets, said, logs: vec!["control.log".into()], processes }
    }

    fn path(&self, name: &str) -> String {
        self.mesh.path(name).display().to_string()
    }

    fn command(&self, args: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(args).env_clear().env("FAIRMESH_LOG", "trace");
        command.env("FAIRMESH_IDENTITY_DIR", self.path("kept")).envs(variables.iter().copied());
        command
    }

    /// Starts a process whose log is kept.
    fn process(&mut self, log: &str, args: &[&str], variables: &[(&str, &str)]) {
        let mut command = self.command(args, variables);
        command.stdout(Stdio::null()).stderr(File::create(self.path(log)).unwrap());
        self.processes.push(Killed(command.spawn().unwrap()));
        self.logs.push(log.to_owned());
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Runs a command, records its output, and returns it.
    fn run(&self, args: &[&str], variables: &[(&str, &str)]) -> String {
        let output = self.command(args, variables).stdin(Stdio::null()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&said).into_owned();
        self.said.borrow_mut().push((format!("fairmesh {}", args.join(" ")), said));
        text
    }

    /// Records a page.
    fn page(&self, address: &str, path: &str) {
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut page = Vec::new();
        stream.read_to_end(&mut page).unwrap();
        assert!(page.starts_with(b"HTTP/1.1 "), "{address}{path}");
        self.said.borrow_mut().push((format!("{address}{path}"), page));
    }

    /// Creates a join token, and adds it to the secrets.
    fn token(&mut self, args: &[&str]) -> String {
        let made = token(&self.mesh, args);
        let secret = Secret::of_token(&format!("the token of {}", args.join(" ")), &made);
        assert!(secret.is_in(made.as_bytes()));
        self.secrets.push(secret);
        made
    }

    fn key(&mut self, file: &str) {
        let pem = self.log(file);
        let secret = Secret::of_key(file, &pem);
        assert!(secret.is_in(pem.as_bytes()), "{file}: it is found where it is");
        self.secrets.push(secret);
    }

    /// Creates a certificate and key for TLS listeners.
    fn certificate(&mut self, name: &str) {
        let made = Command::new("openssl")
            .args(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=edge"
                    .split(' '),
            )
            .args(["-keyout", &self.path(&format!("{name}.key")), "-out", &self.path(&format!("{name}.pem"))])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        self.key(&format!("{name}.key"));
    }

    fn start_agent(&mut self, name: &str, metrics: &str, token: &str) {
        let (control, state) = (self.control.clone(), self.path(name));
        let listen = format!("unix:{}", self.path(&format!("{name}.sock")));
        let who = ["agent", "--name", name, "--region", "eu", "--control", &control, "--admin", metrics];
        let args = [&who[..], &["--listen", &listen, "--state-dir", &state]].concat();
        self.process(&format!("{name}.log"), &args, &[("FAIRMESH_JOIN_TOKEN", token)]);
    }

    /// Places where a secret was printed, or stored where it must not be.
    fn leaks(&self) -> Vec<String> {
        let mut files: Vec<_> = self.logs.iter().map(|log| self.mesh.path(log)).collect();
        // The store, its log of writes, and copies of the store.
        ["data", "web-1", "replica"].iter().for_each(|folder| add_files(&self.mesh.path(folder), &mut files));
        // A file that was replaced meanwhile no longer exists.
        let content = |file: PathBuf| Some((file.display().to_string(), fs::read(file).ok()?));
        let files = files.into_iter().filter_map(content);
        let (mut leaks, search) = (Vec::new(), Search::of(&self.secrets));
        for (from, said) in self.said.borrow().iter().cloned().chain(files) {
            leaks.extend(search.find(&said).into_iter().map(|name| format!("{from} says {name}")));
        }
        leaks
    }
}

/// All files of a folder, except files meant for keys and tokens.
fn add_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with("ca") || path.ends_with("identity") => {}
            true => add_files(&path, files),
            false if path.is_file() => files.push(path),
            // A socket.
            false => {}
        }
    }
}

/// Starts a proxy whose key is on a key server, and one with its own key; returns the addresses of their pages.
fn start_proxies(world: &mut World) -> Vec<String> {
    let ([signing, signing_page], agent) = ([(); 2].map(|()| local()), world.agent.clone());
    ["edge", "own"].iter().for_each(|name| world.certificate(name));
    let (edge, own) = (format!("edge={}", world.path("edge.key")), world.path("own.key"));
    let server = ["keyserver", "--listen", &signing, "--admin", &signing_page, "--agent", &agent];
    world.process("keyserver.log", &[&server[..], &["--key", &edge, "--allow", ALLOWED]].concat(), &[]);
    let mut pages = vec![signing_page];
    let remote = format!("edge@{signing}");
    for (name, keys) in [("edge", ["--tls-key-server", &remote]), ("own", ["--tls-key", &own])] {
        let (listen, admin) = (local(), local());
        let (secured, certificate) =
            (format!("{listen}=shop/catalog+tls"), world.path(&format!("{name}.pem")));
        let proxy =
            ["proxy", "--cores", "1", "--listen", &secured, "--tls-cert", &certificate, "--agent", &agent];
        world.process(&format!("{name}.log"), &[&proxy[..], &keys, &["--admin", &admin]].concat(), &[]);
        wait_until("a call through the proxy is answered", || {
            let mut curl = Command::new("curl");
            curl.args(["-sk", "--max-time", "5", &format!("https://{listen}/")]);
            curl.output().is_ok_and(|output| output.status.success() && !output.stdout.is_empty())
        });
        pages.push(admin);
    }
    pages
}

/// Starts all processes of a mesh, each with work to do; returns the addresses of their pages.
fn start_all(world: &mut World) -> Vec<String> {
    let [agent_page, picking] = [(); 2].map(|()| local());
    let joining = world.token(&["web-1"]);
    world.start_agent("web-1", &agent_page, &joining);
    wait_until("the agent joins", || has_certificate(&world.mesh, "web-1"));
    world.mesh.apply(RECORDS).ok();
    let (agent, control, program) =
        (world.agent.clone(), world.control.clone(), format!("127.0.0.1:{}", echo()));
    let [catalog, files] = [(); 2].map(|()| local());
    let register =
        ["register", "shop/catalog", "--agent", &agent, "--address", &catalog, "--program", &program];
    world.process("catalog.log", &register, &[]);
    let joining = world.token(&["--service", "shop/files"]);
    let register = ["register", "shop/files", "--control", &control, "--region", "eu", "--address", &files];
    let register = [&register[..], &["--program", &program]].concat();
    world.process("files.log", &register, &[("FAIRMESH_JOIN_TOKEN", &joining)]);
    let mut pages = vec![agent_page];
    pages.extend(start_proxies(world));
    let (replica_state, replica, replica_page) = (world.path("replica"), local(), local());
    let replicating = ["rib", "replica", "--name", "eu", "--upstream", &control, "--agent", &agent];
    let further = ["--listen", &replica, "--state-dir", &replica_state, "--admin", &replica_page];
    world.process("replica.log", &[&replicating[..], &further].concat(), &[]);
    let picking_page = local();
    let lookaside = ["lookaside", "--listen", &picking, "--admin", &picking_page, "--agent", &agent];
    world.process("lookaside.log", &lookaside, &[]);
    let is_registered = |service: &str| {
        world.mesh.run(&["get", "endpoints", service, "--json"]).json()[0]["state"] == "serving"
    };
    wait_until("all are registered", || is_registered("shop/catalog") && is_registered("shop/files"));
    for page in [&replica_page, &picking_page] {
        wait_until("it serves its pages", || TcpStream::connect(page).is_ok());
    }
    pages.extend([replica_page, picking_page]);
    pages
}

const RECORDS: &str = "\
kind: Service
name: shop/catalog
---
kind: Service
name: shop/files
---
kind: Workload
service: shop/catalog
programs: [{uid: 0}]
---
kind: RoleBinding
name: shop-operators
role: operator
tenants: [shop]
subjects: ['group:shop-oncall']
";

/// Reading commands of each group.
const READS: &[&str] = &[
    "get services",
    "get endpoints",
    "get policies",
    "get workloads",
    "get authorization",
    "get shards",
    "get moves",
    "get regions",
    "get tables",
    "get hosts",
    "get health",
    "get watchers",
    "get roles",
    "rib status",
    "rib verify",
    "describe shop/catalog",
    "explain shop/catalog",
    "imbalance",
    "traffic status",
    "traffic calls",
    "identity list",
    "identity show",
    "identity whoami",
    "identity plaintext",
    "identity federation list",
    "history service shop/catalog",
    "audit",
    "security check",
    "check",
    "version",
];

/// Typical mistakes with secrets. Each is refused, without the secret in the error.
fn fail_with_secrets(world: &mut World, key: &Key) {
    let (control, agent, bundle) =
        (world.control.clone(), world.agent.clone(), world.path("data/ca/bundle.pem"));
    let used = world.token(&["web-2"]);
    let cut = used[..used.len() - 1].to_owned();
    let twice = world.mesh.file("twice", &format!("{used}\n{used}\n"));
    let (cut, call) = (cut.as_str(), ["call", "shop/catalog", "--control", &control, "--as", "shop/api"]);
    let variable = |token| [("FAIRMESH_JOIN_TOKEN", token)];
    for said in [
        world.run(&["agent", "--name", "web-3"], &variable(cut)),
        world.run(&["agent", "--name", "web-3", "--join-token-file", &twice], &[]),
        world.run(&call, &variable(cut)),
    ] {
        assert!(said.contains("token"), "{said}");
    }
    assert!(world.run(&call, &variable(&used)).contains("the token is for an agent"));
    world.start_agent("web-2", "none", &used);
    wait_until("the agent joins", || has_certificate(&world.mesh, "web-2"));
    world.key("web-2/identity/identity.key");
    world.start_agent("web-4", "none", &used);
    wait_until("its token is refused", || world.log("web-4.log").contains("the token was used already"));

    // User tokens: altered, expired, and malformed.
    let good = key.token(600);
    let altered = format!("{}A{}", &good[..good.len() - 20], &good[good.len() - 19..]);
    let user = ["get", "policies", "--tenant", "shop", "--control", &control, "--trust-bundle", &bundle];
    for token in [&good, &altered, &key.token(-120), &format!("{good} {good}")] {
        world.secrets.push(Secret::of_jwt("a token of a user", token.rsplit(' ').next().unwrap()));
        world.run(&[&user[..], &["--json"]].concat(), &[("FAIRMESH_TOKEN", token)]);
    }
    let broken = world.log("edge.key").replace("-----END", "----");
    let broken = world.mesh.file("broken.key", &broken);
    for file in ["--token-file", "--trust-bundle"] {
        world.run(&["get", "policies", "--control", &control, file, &broken], &[]);
    }
    // Keys that are unreadable or do not match the certificate.
    let (named, certificate) = (format!("edge={broken}"), world.path("own.pem"));
    world.run(&["keyserver", "--agent", &agent, "--admin", "none", "--key", &named, "--allow", ALLOWED], &[]);
    for key in [broken, world.path("edge.key")] {
        let listen = format!("{}+tls", local());
        let proxy =
            ["proxy", "--listen", &listen, "--admin", "none", "--tls-cert", &certificate, "--tls-key", &key];
        world.run(&proxy, &[]);
    }
    world.key("kept/shop/files/identity.key");
    let kept = world.log("kept/shop/files/identity.key").replace("-----END", "----");
    fs::create_dir_all(world.path("kept/shop/api")).unwrap();
    world.mesh.file("kept/shop/api/identity.key", &kept);
    assert!(world.run(&call, &[]).contains("fairmesh identity token --service shop/api"));
}

const ALLOWED: &str = "edge=spiffe://prod/fairmesh/proxy/web-1.proxy";

/// Creates another root and intermediate, and an unusable intermediate.
fn rotate(world: &mut World) {
    let control = world.mesh.address();
    let own = [("FAIRMESH_CONTROL", control.as_str())];
    for rotate in
        [&["identity", "rotate", "--root", "--json"][..], &["identity", "rotate", "--force", "--json"]]
    {
        assert!(world.run(rotate, &own).contains("issuer"));
        ["data/ca/root.key", "data/ca/issuer.key"].iter().for_each(|file| world.key(file));
    }
    fs::copy(world.path("edge.key"), world.path("data/ca/issuer.key")).unwrap();
    wait_until("the control plane refuses it", || {
        world.log("control.log").contains("issuer.key is not used")
    });
}

/// Reads everything that can be read: by commands, in an export, and on pages.
fn read_all(world: &mut World, pages: &[String]) {
    let (control, agent, control_page) =
        (world.mesh.address(), world.agent.clone(), http_address(&world.mesh));
    let own = [("FAIRMESH_CONTROL", control.as_str()), ("FAIRMESH_AGENT", agent.as_str())];
    for read in READS {
        let args: Vec<&str> = read.split(' ').chain(["--json"]).collect();
        assert!(!world.run(&args, &own).is_empty(), "{read}");
    }
    let export = world.path("records");
    world.run(&["rib", "export", &export], &own);
    world.logs.push("records".into());
    for address in pages.iter().chain([&control_page]) {
        for path in ["/metrics", "/healthz", "/readyz"] {
            world.page(address, path);
        }
    }
    for admin in &pages[2..4] {
        for path in [
            "/",
            "/config",
            "/services",
            "/last",
            "/services/shop/catalog/endpoints",
            "/services/shop/catalog/routes",
        ] {
            world.page(admin, path);
        }
        for command in ["status", "routes"] {
            world.run(&["proxy", command, "--admin", admin, "--json"], &[]);
        }
        world.run(&["proxy", "endpoints", "shop/catalog", "--admin", admin, "--json"], &[]);
    }
}

#[test]
fn program_started_by_register_inherits_no_secret_tokens() {
    let mesh = Mesh::start();
    let (to, address, seen) =
        (mesh.address(), format!("127.0.0.1:{}", free_port()), mesh.path("environment"));
    let write = format!("env > '{0}.new'; mv '{0}.new' '{0}'; exec sleep 600", seen.display());
    let register = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
        .args(["register", "shop/x", "--address", &address, "--control", &to, "--region", "eu"])
        .args(["--", "sh", "-c", &write])
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("FAIRMESH_TOKEN", "secret"), ("KEPT", "yes")])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _register = Killed(register);
    wait_until("the program runs", || seen.exists());
    let environment = fs::read_to_string(seen).unwrap();
    assert!(environment.contains("KEPT=yes") && !environment.contains("secret"), "{environment}");
}

#[test]
fn output_and_logs_contain_no_secret() {
    if tool("openssl").is_none() {
        return skipped("certificates of listeners cannot be made", "openssl is missing");
    }
    let key = Key::new("one");
    let mut world = World::start(&key);
    ["data/ca/root.key", "data/ca/issuer.key"].iter().for_each(|file| world.key(file));
    let pages = start_all(&mut world);
    world.key("web-1/identity/identity.key");
    let (agent, control) = (world.agent.clone(), world.control.clone());
    world.run(&["call", "shop/files", "/", "--agent", &agent, "--as", "shop/catalog", "-v"], &[]);
    world.key("kept/shop/catalog/identity.key");
    let joining = world.token(&["--service", "shop/web"]);
    let direct = ["call", "shop/catalog", "/", "--control", &control, "--as", "shop/web", "-v"];
    world.run(&direct, &[("FAIRMESH_JOIN_TOKEN", &joining)]);
    world.key("kept/shop/web/identity.key");
    fail_with_secrets(&mut world, &key);

    let token = key.token(300);
    world.secrets.push(Secret::of_jwt("a token that a page takes", &token));
    let request = format!(
        "GET /v1/shards/shop/catalog HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
    );
    let control_page = http_address(&world.mesh);
    let answer = over_tls(&world.mesh, &control_page, &request);
    world.said.borrow_mut().push(("a page of a user".into(), answer.into_bytes()));

    rotate(&mut world);
    read_all(&mut world, &pages);
    // These processes use HTTP/2, whose library logs what it sends.
    for log in ["control.log", "web-1.log", "keyserver.log"] {
        assert!(world.log(log).contains("TRACE"), "{log}: it says all that it can say");
    }
    assert_eq!(world.leaks(), Vec::<String>::new());
}
