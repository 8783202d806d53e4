//! Reads numbers from the text that the kernel writes about processes and cgroups. Nothing here
//! allocates: the watchdog reads such text as long as the command runs.

/// Parses decimal digits; anything else gives None.
pub fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// The number on the line that begins with `key`: `oom_kill 3`, `Pss:   120 kB`.
pub fn value_of(text: &[u8], key: &[u8]) -> Option<u64> {
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let mut words = words(line);
        (words.next()? == key).then(|| number(words.next()?))?
    })
}

pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty())
}

/// The fields of `/proc/PID/stat` that the watchdog reads (proc_pid_stat(5)). Times are in clock
/// ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuStat {
    /// Ticks of all threads, including threads that have ended.
    pub own_ticks: u64,
    /// Ticks of the reaped children and of the children that those had reaped.
    pub reaped_ticks: u64,
    pub threads: u64,
}

impl CpuStat {
    /// Parses `PID (NAME) STATE PPID …`. NAME may contain any byte, so the search starts at the
    /// last `)`.
    pub fn parse(text: &[u8]) -> Option<CpuStat> {
        let close = text.iter().rposition(|byte| *byte == b')')?;
        let mut fields = words(&text[close + 1..]);
        let mut field = |skipped: usize| number(fields.nth(skipped)?);
        let (user, system) = (field(11)?, field(0)?);
        let (reaped_user, reaped_system) = (field(0)?, field(0)?);
        let threads = field(2)?;
        Some(CpuStat {
            own_ticks: user.saturating_add(system),
            reaped_ticks: reaped_user.saturating_add(reaped_system),
            threads,
        })
    }
}

/// The second number of `/proc/PID/statm`: pages in memory.
pub fn resident_pages(statm: &[u8]) -> Option<u64> {
    number(words(statm).nth(1)?)
}

/// The number of running tasks and of all tasks, from `/proc/loadavg`: `0.00 0.00 0.00 RUNNING/ALL
/// LAST`.
pub fn tasks(loadavg: &[u8]) -> Option<(u64, u64)> {
    let mut counts = words(loadavg).nth(3)?.split(|byte| *byte == b'/');
    Some((number(counts.next()?)?, number(counts.next()?)?))
}

/// Parses a list of numbers that is read in pieces. A number can span two pieces.
#[derive(Default)]
pub struct NumberList {
    unfinished: Option<i32>,
}

impl NumberList {
    pub fn take(&mut self, piece: &[u8], mut each: impl FnMut(i32)) {
        for byte in piece {
            if byte.is_ascii_digit() {
                let value = self.unfinished.unwrap_or(0);
                self.unfinished =
                    Some(value.saturating_mul(10).saturating_add(i32::from(byte - b'0')));
            } else if let Some(value) = self.unfinished.take() {
                each(value);
            }
        }
    }

    pub fn end(self, each: impl FnMut(i32)) {
        self.unfinished.into_iter().for_each(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_decimal_numbers_are_parsed() {
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        for wrong in [&b""[..], b"18446744073709551616", b"-1", b"+1", b"1 ", b"max", b"0x1"] {
            assert_eq!(number(wrong), None);
        }
    }

    #[test]
    fn task_counts_are_read_from_loadavg() {
        assert_eq!(tasks(b"0.80 2.55 3.37 2/82 11515\n"), Some((2, 82)));
        for wrong in [&b"0.80 2.55 3.37"[..], b"0.80 2.55 3.37 2", b"0.80 2.55 3.37 2/x 1"] {
            assert_eq!(tasks(wrong), None);
        }
    }

    #[test]
    fn a_value_is_found_by_its_whole_key() {
        let events = b"low 0\nhigh 1\nmax 2\noom 3\noom_kill 4\noom_group_kill 5\n";
        assert_eq!(value_of(events, b"oom"), Some(3));
        assert_eq!(value_of(events, b"oom_kill"), Some(4));
        assert_eq!(value_of(events, b"kill"), None);
        let rollup = b"0-1 ---p 00000000 00:00 0   [rollup]\nRss:  1728 kB\nPss:   226 \
            kB\nPss_Anon:  112 kB\n";
        assert_eq!(value_of(rollup, b"Pss:"), Some(226));
        assert_eq!(value_of(b"oom_kill", b"oom_kill"), None);
        assert_eq!(value_of(b"", b""), None);
    }

    #[test]
    fn a_hostile_name_does_not_confuse_the_fields() {
        let stat =
            b"77 (a) R 1 (b) c) S 42 77 77 0 -1 4194560 7 8 9 10 11 12 13 14 20 0 3 0 5000 1 2";
        let expected = CpuStat { own_ticks: 23, reaped_ticks: 27, threads: 3 };
        assert_eq!(CpuStat::parse(stat), Some(expected));
        for wrong in [&b""[..], b"77 )(", b"77 (a) S 42", b"no name at all"] {
            assert_eq!(CpuStat::parse(wrong), None);
        }
    }

    #[test]
    fn resident_pages_are_read_from_statm() {
        assert_eq!(resident_pages(b"1000 250 100 1 0 200 0\n"), Some(250));
        assert_eq!(resident_pages(b"1000"), None);
    }

    #[test]
    fn a_number_list_can_be_split_anywhere() {
        let text = b"12 345\n6 ";
        for cut in 0..=text.len() {
            let mut found = Vec::new();
            let mut list = NumberList::default();
            list.take(&text[..cut], |number| found.push(number));
            list.take(&text[cut..], |number| found.push(number));
            list.end(|number| found.push(number));
            assert_eq!(found, [12, 345, 6]);
        }
        let mut found = Vec::new();
        let mut list = NumberList::default();
        list.take(b"7", |number| found.push(number));
        list.end(|number| found.push(number));
        assert_eq!(found, [7]);
    }
}
