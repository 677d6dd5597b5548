//! Answers of listeners to the question whether the kernel may carry requests within the machine. Whatever they say, the lines
//! that the kernel adds to requests name the parties that have proved their identities, and are lines.

use fairmesh_proxy::fuzzing;

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    let Some(lines) = fuzzing::local_answer(data) else { return };
    assert!(lines.len() <= 512 && lines.len().is_multiple_of(8), "{} bytes", lines.len());
    let text = String::from_utf8(lines).expect("it is ASCII");
    let lines: Vec<_> = text.strip_suffix("\r\n").expect("the last line ends").split("\r\n").collect();
    let [caller, certificate] = lines[..] else { panic!("{lines:?}") };
    assert_eq!(caller, "x-fairmesh-caller: spiffe://prod/shop/web");
    let certificate = certificate.strip_prefix("x-forwarded-client-cert: ").expect("it has this name").trim();
    let hash = certificate.strip_prefix("By=spiffe://prod/shop/cart;Hash=").expect("it names the server");
    let hash = hash.strip_suffix(";URI=spiffe://prod/shop/web").expect("it names the caller");
    assert!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");
}
