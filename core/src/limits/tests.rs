use crate::limits::*;

const ALL: RequestedLimits = RequestedLimits {
    memory_mb: Some(512),
    processes: Some(64),
    cpu_s: Some(10),
    open_files: Some(100),
    file_size_mb: Some(5),
    wall_s: Some(60),
};

fn chosen(full_tier: bool, root: bool) -> ChosenMeans {
    ChosenMeans::new(&ALL, full_tier, root, &Cgroups::none())
}

#[test]
fn missing_and_unknown_limits_are_refused() {
    let text = concat!(
        r#"{"memory_mb":512,"processes":64,"cpu_s":10,"#,
        r#""open_files":100,"file_size_mb":5,"wall_s":60}"#
    );
    assert_eq!(serde_json::from_str::<RequestedLimits>(text).unwrap(), ALL);
    assert!(serde_json::from_str::<RequestedLimits>(&text.replace("\"cpu_s\":10,", "")).is_err());
    assert!(serde_json::from_str::<RequestedLimits>(&text.replace("cpu_s", "cpu")).is_err());
    assert!(
        serde_json::from_str::<RequestedLimits>(&text.replace("cpu_s\":10", "cpu_s\":-10"))
            .is_err()
    );
    let nothing = text.replace("cpu_s\":10", "cpu_s\":null");
    assert_eq!(serde_json::from_str::<RequestedLimits>(&nothing).unwrap().cpu_s, None);
}

#[test]
fn without_limits_nothing_is_done() {
    let limits = Limits::prepare(&RequestedLimits::default(), true, "unit").unwrap();
    assert!(limits.active().is_empty() && limits.rlimits().is_empty() && !limits.need_supervisor());
    assert_eq!(limits.pid_max(), None);
    assert!(limits.finish(None).is_empty());
}

#[test]
fn zero_and_huge_limits_are_refused() {
    let refused = |requested| Limits::prepare(&requested, true, "unit").err();
    assert_eq!(
        refused(RequestedLimits { cpu_s: Some(0), ..RequestedLimits::default() }),
        Some(LimitsError::Zero(Limit::Cpu))
    );
    let huge = u64::MAX >> 20;
    let expected = LimitsError::TooLarge(Limit::FileSize, huge);
    assert_eq!(
        refused(RequestedLimits { file_size_mb: Some(huge), ..RequestedLimits::default() }),
        Some(expected.clone())
    );
    assert_eq!(expected.to_string(), "a limit of 17592186044415 file_size_mb is too large");
}

#[test]
fn without_cgroups_the_tier_chooses_the_means() {
    let full = chosen(true, false);
    assert_eq!((full.memory, full.processes), (Some(Means::Watchdog), Some(Means::UserNamespace)));
    assert_eq!(chosen(false, false).processes, Some(Means::Watchdog));
    assert_eq!(chosen(true, true).processes, Some(Means::Watchdog));
    let rlimits = full.rlimits(&ALL, Some(512 << 20), Some(5 << 20), Some(65));
    assert_eq!(
        rlimits,
        [
            (Resource::Data, 512 << 20),
            (Resource::Nproc, 65),
            (Resource::Cpu, 11),
            (Resource::Nofile, 100),
            (Resource::Fsize, 5 << 20),
        ]
    );
}

#[test]
fn a_cgroup_needs_no_backstop_for_memory_and_processes() {
    let active = ChosenMeans {
        memory: Some(Means::CgroupV2),
        processes: Some(Means::CgroupV1),
        cpu: Some(Means::CgroupV2),
    };
    let rlimits = active.rlimits(&ALL, Some(512 << 20), None, Some(65));
    assert_eq!(rlimits, [(Resource::Cpu, 11), (Resource::Nofile, 100)]);
    let texts: Vec<String> = active.active(&ALL).iter().map(ActiveLimit::to_string).collect();
    assert_eq!(
        texts,
        [
            "memory_mb 512: cgroup v2",
            "processes 64: cgroup v1",
            "cpu_s 10: cgroup v2",
            "open_files 100: rlimit",
            "file_size_mb 5: rlimit",
            "wall_s 60: watchdog",
        ]
    );
}

#[test]
fn address_space_is_never_limited() {
    for (full_tier, root) in [(false, false), (true, false), (true, true)] {
        let rlimits = chosen(full_tier, root).rlimits(&ALL, Some(1), Some(1), Some(1));
        assert!(rlimits.iter().all(|(resource, _)| *resource != Resource::As));
    }
}

#[test]
fn pid_max_leaves_room_after_pids_wrap() {
    assert_eq!(pid_max_for(1), Some(303));
    assert_eq!(pid_max_for(256), Some(558));
    assert_eq!(pid_max_for(4 << 20), None);
    assert_eq!(pid_max_for(u64::MAX), None);
}

#[test]
fn decimals_are_written_without_allocating() {
    for number in [0, 7, 10, 4_194_304, u32::MAX] {
        let mut buffer = [0; 12];
        let start = decimal(number, &mut buffer);
        assert_eq!(std::str::from_utf8(&buffer[start..]).unwrap(), number.to_string());
    }
}

#[test]
fn signals_name_their_limit() {
    let limits = Limits::prepare(
        &RequestedLimits { file_size_mb: Some(1), ..RequestedLimits::default() },
        false,
        "unit",
    )
    .unwrap();
    assert_eq!(limits.behind_signal(libc::SIGXFSZ).unwrap().to_string(), "file_size_mb 1 exceeded");
    assert_eq!(limits.behind_signal(libc::SIGXCPU), None);
    assert_eq!(limits.behind_signal(libc::SIGKILL), None);
}

#[test]
fn an_exceeded_limit_is_reported_once() {
    let only_wall =
        RequestedLimits { processes: Some(1 << 20), wall_s: Some(1), ..RequestedLimits::default() };
    // This test creates no cgroup and needs none.
    let chosen = ChosenMeans::new(&only_wall, true, false, &Cgroups::none());
    let limits = Limits {
        active: chosen.active(&only_wall),
        rlimits: Vec::new(),
        pid_max: None,
        groups: Cgroups::none(),
        full_tier: true,
        was_full: Cell::new(true),
    };
    let wall: ExceededLimit = limits.active_limit(Limit::Wall).unwrap().into();
    let met = limits.finish(Some(wall));
    assert_eq!(met.len(), 2);
    assert_eq!((met[0].to_string().as_str(), met[0].ended), ("wall_s 1 exceeded", true));
    assert_eq!((met[1].to_string().as_str(), met[1].ended), ("processes 1048576 exceeded", false));
}
