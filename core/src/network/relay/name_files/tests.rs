use super::*;

fn name(text: &str) -> HostName {
    HostName::read(text.as_bytes()).unwrap()
}

#[test]
fn name_servers_are_read_from_resolv_conf() {
    let text = b"# nameserver 1.1.1.1\nnameserver 9.9.9.9\nnameserver fe80::1%2\nnameserver \
         nonsense\nsearch a.example\n\
        options ndots:5 timeout:2 attempts:9\nnameserver 8.8.8.8\nnameserver 8.8.4.4\n";
    let servers = NameServers::read(text);
    assert_eq!(servers.timeout, Duration::from_secs(2));
    assert_eq!((servers.attempts, servers.tries()), (MAX_ATTEMPTS, 3 * MAX_ATTEMPTS));
    let sent: Vec<String> = (0..4).map(|attempt| servers.at(attempt, 53).to_string()).collect();
    assert_eq!(sent, ["9.9.9.9:53", "[fe80::1%2]:53", "8.8.8.8:53", "9.9.9.9:53"]);
    assert_eq!(NameServers::read(b"").at(0, 53).to_string(), "127.0.0.1:53");
}

#[test]
fn all_names_of_the_hosts_file_are_read() {
    let hosts = read_hosts(
        b"# 1.2.3.4 no\n127.0.0.1\tlocalhost  Me.Example # here\n::1 localhost\nrubbish \
         x\n10.0.0.1 bad/name b\n",
    );
    assert_eq!(
        hosts[&name("localhost")],
        ["127.0.0.1".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]
    );
    assert_eq!(hosts[&name("me.example")], ["127.0.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(hosts[&name("b")], ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(hosts.len(), 3);
}

#[test]
fn a_file_that_changes_is_read_again() {
    let path = std::env::temp_dir().join(format!("paddock-hosts-{}", std::process::id()));
    let mut hosts = WatchedFile::new(path.clone(), read_hosts);
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    assert!(hosts.current(start).is_empty());
    std::fs::write(&path, "10.0.0.1 a\n").unwrap();
    assert_eq!(hosts.current(at(1)).len(), 1);
    std::fs::write(&path, "10.0.0.1 a b\n").unwrap();
    assert_eq!(hosts.current(at(2)).len(), 2);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(hosts.current(at(2)).len(), 2, "it is the same moment");
    assert!(hosts.current(at(3)).is_empty());
}
