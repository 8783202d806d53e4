//! Replaced objects in `packed-refs`.
//!
//! A ref in `refs/replace` makes git read another object in the place of one. The commit id stays
//! the same, and `git fsck` reports nothing. The directory `refs/replace` is locked. This finds
//! such refs in the file of packed refs.

const REPLACEMENT: &[u8] = b"refs/replace/";

pub fn is_harmless(content: &[u8]) -> bool {
    !has_replacement(content)
}

/// Git reads one blank between the object id and the ref, and any blank will do.
fn has_replacement(text: &[u8]) -> bool {
    text.split(|byte| *byte <= b' ').any(|word| word.starts_with(REPLACEMENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HONEST: &str = "# pack-refs with: peeled fully-peeled sorted \n\
        1111111111111111111111111111111111111111 refs/heads/main\n\
        2222222222222222222222222222222222222222 refs/heads/refs/replace/x\n\
        3333333333333333333333333333333333333333 refs/tags/v1\n\
        ^4444444444444444444444444444444444444444\n";

    #[test]
    fn branches_and_tags_are_harmless() {
        assert!(is_harmless(b"") && is_harmless(HONEST.as_bytes()));
    }

    #[test]
    fn a_replaced_object_is_not() {
        let id = "5555555555555555555555555555555555555555";
        for blank in [" ", "\t", "\r", "\n"] {
            let line = format!("{id}{blank}refs/replace/{id}\n");
            assert!(!is_harmless(format!("{HONEST}{line}").as_bytes()), "{blank:?}");
        }
    }
}
