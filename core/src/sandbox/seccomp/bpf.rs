//! Classic BPF for seccomp: an assembler for one shape of program.
//!
//! Check the architecture, load the number, then find its leaf in a search tree. The kernel runs
//! the filter once for every number when it is installed, and on every call that is not always
//! allowed. A tree costs six steps; a list of sixty comparisons costs thirty on average. A tree
//! that is balanced by numbers, not by ranges, costs a step less. The kernel also translates every
//! instruction to machine code on each launch. So equal answers share their leaf, and single
//! numbers are compared one after the other.

use crate::kernel::sys::Instruction;
use crate::plan::syscalls::Arch;

pub const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
pub const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
pub const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
pub const JUMP_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
pub const JUMP_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
pub const RETURN: u16 = 0x06; // BPF_RET | BPF_K

pub const RET_ALLOW: u32 = 0x7FFF_0000;
pub const RET_ERRNO: u32 = 0x0005_0000;
pub const RET_USER_NOTIF: u32 = 0x7FC0_0000;
pub const RET_KILL_PROCESS: u32 = 0x8000_0000;

/// Offsets into `struct seccomp_data`.
pub const OFFSET_NR: u32 = 0;
pub const OFFSET_ARCH: u32 = 4;

/// The kernel's limit, BPF_MAXINSNS.
pub const MAX_LENGTH: usize = 4096;

const X32_BIT: u32 = 0x4000_0000;

/// The low half of argument `index`; both architectures are little endian.
pub const fn offset_of_argument(index: u32) -> u32 {
    16 + 8 * index
}

/// From the low half of an argument to its high half.
pub const HIGH_HALF: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallAnswer<'a> {
    Allow,
    Errno(i32),
    /// The listener answers.
    Notify,
    Kill,
    /// Allows a call that passes every rule, in this order. The first rule that fails gives its
    /// errno.
    Arguments(&'a [ArgumentRule<'a>]),
}

/// A rule on the low 32 bits of one argument, or on a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentRule<'a> {
    /// Applies only if another argument, by its index, has one of these values.
    pub when: Option<(u32, &'a [u32])>,
    pub index: u32,
    pub test: ValueTest<'a>,
}

impl<'a> ArgumentRule<'a> {
    pub const fn at(index: u32, test: ValueTest<'a>) -> ArgumentRule<'a> {
        ArgumentRule { when: None, index, test }
    }

    pub const fn when(self, index: u32, values: &'a [u32]) -> ArgumentRule<'a> {
        ArgumentRule { when: Some((index, values)), ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueTest<'a> {
    /// These values get the errno, all others pass.
    Refuse { values: &'a [u32], errno: i32 },
    /// Only these values pass.
    Only { values: &'a [u32], errno: i32 },
    /// A value with any of these bits gets the errno.
    RefuseBits { bits: u32, errno: i32 },
    /// The same, unless it has any of the other bits.
    RefuseBitsWithout { bits: u32, others: u32, errno: i32 },
    /// The listener answers calls with these values.
    Notify { values: &'a [u32] },
    /// The listener answers calls whose value has any of these bits.
    NotifyBits { bits: u32 },
    /// The listener answers calls whose pointer is not null: both halves count.
    NotifyPointer,
}

/// The action from `first` up to the next entry's `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRange<'a> {
    pub first: u32,
    pub action: CallAnswer<'a>,
}

#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    #[error("a jump of {0} instructions does not fit 8 bits")]
    JumpTooLong(usize),
    #[error("the filter has {0} instructions, more than {MAX_LENGTH}")]
    TooLong(usize),
}

const fn instruction(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: usize, jf: usize) -> Result<Instruction, BpfError> {
    let fit = |offset: usize| u8::try_from(offset).map_err(|_| BpfError::JumpTooLong(offset));
    Ok(Instruction { code, jt: fit(jt)?, jf: fit(jf)?, k })
}

/// `ranges` are sorted, the first starts at 0.
pub fn assemble(arch: Arch, mut ranges: Vec<CallRange<'_>>) -> Result<Vec<Instruction>, BpfError> {
    let mut program = vec![
        instruction(LOAD, OFFSET_ARCH),
        jump(JUMP_EQUAL, arch.audit(), 1, 0)?,
        instruction(RETURN, RET_KILL_PROCESS),
        instruction(LOAD, OFFSET_NR),
    ];
    // x32 has the architecture value of x86_64 and its own bit in the number.
    let x32 =
        (arch == Arch::X86_64).then_some(CallRange { first: X32_BIT, action: CallAnswer::Kill });
    ranges.extend(x32);
    program.extend(tree(&ranges)?);
    match program.len() {
        length if length <= MAX_LENGTH => Ok(program),
        length => Err(BpfError::TooLong(length)),
    }
}

/// A program that answers one call with exactly these arguments, and allows every other.
pub fn answering(
    arch: Arch,
    number: u32,
    arguments: &[u64],
    errno: i32,
) -> Result<Vec<Instruction>, BpfError> {
    let halves = arguments.iter().zip(0..).flat_map(|(value, index)| {
        let low = offset_of_argument(index);
        [(low, *value as u32), (low + HIGH_HALF, (*value >> 32) as u32)]
    });
    let tests: Vec<_> =
        [(OFFSET_ARCH, arch.audit()), (OFFSET_NR, number)].into_iter().chain(halves).collect();
    let mut program = Vec::with_capacity(2 * tests.len() + 2);
    for (position, (offset, value)) in tests.iter().enumerate() {
        // A miss goes to the last instruction, behind the answer.
        let remaining = 2 * (tests.len() - position - 1) + 1;
        program.extend([instruction(LOAD, *offset), jump(JUMP_EQUAL, *value, 0, remaining)?]);
    }
    program.extend([refusal(errno), instruction(RETURN, RET_ALLOW)]);
    Ok(program)
}

/// A block holds at most this many ranges. Its jumps then reach its leaves, which are at its end,
/// once each.
const BLOCK_RANGES: usize = 128;

fn tree(ranges: &[CallRange<'_>]) -> Result<Vec<Instruction>, BpfError> {
    if ranges.len() <= BLOCK_RANGES {
        return block(ranges);
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let (below, above) = (tree(lower)?, tree(upper)?);
    // Conditional jumps reach 255 instructions; the unconditional one has 32 bits.
    let mut program =
        vec![jump(JUMP_AT_LEAST, upper[0].first, 0, 1)?, instruction(JUMP, below.len() as u32)];
    program.extend(below);
    program.extend(above);
    Ok(program)
}

/// A comparison whose jump distances are not known yet.
struct Comparison {
    code: u16,
    with: u32,
    yes: JumpTarget,
    no: JumpTarget,
}

/// At most so many single numbers are compared in a row: more would be slower than a search.
const MAX_ROW_LENGTH: usize = 3;

#[derive(Clone, Copy)]
enum JumpTarget {
    Node(u16),
    Leaf(u16),
}

/// The comparisons come first, then each answer once.
struct TreeBlock<'a> {
    nodes: Vec<Comparison>,
    leaves: Vec<CallAnswer<'a>>,
}

fn block(ranges: &[CallRange<'_>]) -> Result<Vec<Instruction>, BpfError> {
    let mut block = TreeBlock { nodes: Vec::with_capacity(ranges.len()), leaves: Vec::new() };
    let root = block.search(ranges, None);
    let TreeBlock { nodes, leaves } = block;
    debug_assert!(matches!(root, JumpTarget::Node(0)) || nodes.is_empty());
    let mut tail = Vec::with_capacity(2 * leaves.len());
    let mut positions = Vec::with_capacity(leaves.len());
    for action in leaves {
        positions.push(nodes.len() + tail.len());
        tail.extend(leaf(action)?);
    }
    let position = |target: JumpTarget| match target {
        JumpTarget::Node(index) => usize::from(index),
        JumpTarget::Leaf(index) => positions[usize::from(index)],
    };
    let mut program = Vec::with_capacity(nodes.len() + tail.len());
    for (index, node) in nodes.iter().enumerate() {
        let next = index + 1;
        program.push(jump(
            node.code,
            node.with,
            position(node.yes) - next,
            position(node.no) - next,
        )?);
    }
    program.extend(tail);
    Ok(program)
}

impl<'a> TreeBlock<'a> {
    /// Comparisons in preorder: every jump goes forward, as BPF demands. `end`: the end of the last
    /// range, if it has one.
    fn search(&mut self, ranges: &[CallRange<'a>], end: Option<u32>) -> JumpTarget {
        let (lower, upper) = match ranges {
            [] => return self.leaf(CallAnswer::Allow),
            [range] => return self.leaf(range.action),
            _ => ranges.split_at(middle(ranges)),
        };
        if let Some(common) = common_action(ranges, end) {
            return self.row(ranges, common);
        }
        let index = self.nodes.len();
        let pivot = upper[0].first;
        self.nodes.push(Comparison {
            code: JUMP_AT_LEAST,
            with: pivot,
            yes: JumpTarget::Node(0),
            no: JumpTarget::Node(0),
        });
        self.nodes[index].no = self.search(lower, Some(pivot));
        self.nodes[index].yes = self.search(upper, end);
        JumpTarget::Node(index as u16)
    }

    /// One comparison for each number with an answer of its own.
    fn row(&mut self, ranges: &[CallRange<'a>], common: CallAnswer<'a>) -> JumpTarget {
        let first = self.nodes.len();
        for range in ranges.iter().filter(|range| range.action != common) {
            let (yes, no) =
                (self.leaf(range.action), JumpTarget::Node(self.nodes.len() as u16 + 1));
            self.nodes.push(Comparison { code: JUMP_EQUAL, with: range.first, yes, no });
        }
        let otherwise = self.leaf(common);
        if let Some(last) = self.nodes.last_mut() {
            last.no = otherwise;
        }
        JumpTarget::Node(first as u16)
    }

    fn leaf(&mut self, action: CallAnswer<'a>) -> JumpTarget {
        let known = self.leaves.iter().position(|known| *known == action);
        JumpTarget::Leaf(known.unwrap_or_else(|| {
            self.leaves.push(action);
            self.leaves.len() - 1
        }) as u16)
    }
}

/// The answer to all numbers but a few single ones.
fn common_action<'a>(ranges: &[CallRange<'a>], end: Option<u32>) -> Option<CallAnswer<'a>> {
    // n single numbers make at most 2n + 1 ranges.
    if ranges.len() > 2 * MAX_ROW_LENGTH + 1 {
        return None;
    }
    let ends = ranges.iter().skip(1).map(|range| Some(range.first)).chain([end]);
    let wide =
        ranges.iter().zip(ends).filter(|(range, end)| *end != Some(range.first.wrapping_add(1)));
    let mut actions = wide.map(|(range, _)| range.action);
    let common = actions.next()?;
    let single = ranges.iter().filter(|range| range.action != common).count();
    (actions.all(|action| action == common) && (1..=MAX_ROW_LENGTH).contains(&single))
        .then_some(common)
}

/// The range that splits the numbers in half. Numbers above the constant do not count: the
/// architecture has no such calls.
fn middle(ranges: &[CallRange<'_>]) -> usize {
    const MAX_COUNTED_NUMBER: u32 = 512;
    let start = |at: usize| ranges[at].first.min(MAX_COUNTED_NUMBER);
    let half = start(0).midpoint(start(ranges.len() - 1).max(start(0)));
    let middle = ranges.partition_point(|range| range.first < half);
    middle.clamp(1, ranges.len() - 1)
}

fn leaf(action: CallAnswer<'_>) -> Result<Vec<Instruction>, BpfError> {
    let mut program = Vec::new();
    match action {
        CallAnswer::Allow => (),
        CallAnswer::Errno(errno) => return Ok(vec![refusal(errno)]),
        CallAnswer::Notify => return Ok(vec![instruction(RETURN, RET_USER_NOTIF)]),
        CallAnswer::Kill => return Ok(vec![instruction(RETURN, RET_KILL_PROCESS)]),
        CallAnswer::Arguments(looks) => {
            for look in looks {
                program.extend(look_at(look)?);
            }
        }
    }
    program.push(instruction(RETURN, RET_ALLOW));
    Ok(program)
}

const fn refusal(errno: i32) -> Instruction {
    instruction(RETURN, RET_ERRNO | errno as u32)
}

fn look_at(look: &ArgumentRule<'_>) -> Result<Vec<Instruction>, BpfError> {
    let body = test_of(look)?;
    let Some((index, values)) = look.when else { return Ok(body) };
    let mut program = vec![instruction(LOAD, offset_of_argument(index))];
    for (position, value) in values.iter().enumerate() {
        let remaining = values.len() - position - 1;
        program.push(jump(
            JUMP_EQUAL,
            *value,
            remaining,
            if remaining == 0 { body.len() } else { 0 },
        )?);
    }
    program.extend(body);
    Ok(program)
}

/// Load, compare, refuse. A value that passes jumps over the refusal.
fn test_of(look: &ArgumentRule<'_>) -> Result<Vec<Instruction>, BpfError> {
    if let ValueTest::RefuseBitsWithout { bits, others, errno } = look.test {
        return Ok(vec![
            instruction(LOAD, offset_of_argument(look.index)),
            jump(JUMP_ANY_BIT, others, 2, 0)?,
            jump(JUMP_ANY_BIT, bits, 0, 1)?,
            refusal(errno),
        ]);
    }
    let low = offset_of_argument(look.index);
    let (code, values, hit_passes, answer) = match &look.test {
        ValueTest::NotifyPointer => {
            return Ok(vec![
                instruction(LOAD, low),
                jump(JUMP_EQUAL, 0, 0, 2)?,
                instruction(LOAD, low + HIGH_HALF),
                jump(JUMP_EQUAL, 0, 1, 0)?,
                instruction(RETURN, RET_USER_NOTIF),
            ]);
        }
        ValueTest::Refuse { values, errno } => (JUMP_EQUAL, *values, false, refusal(*errno)),
        ValueTest::Only { values, errno } => (JUMP_EQUAL, *values, true, refusal(*errno)),
        ValueTest::RefuseBits { bits, errno }
        | ValueTest::RefuseBitsWithout { bits, errno, .. } => {
            (JUMP_ANY_BIT, std::slice::from_ref(bits), false, refusal(*errno))
        }
        ValueTest::Notify { values } => {
            (JUMP_EQUAL, *values, false, instruction(RETURN, RET_USER_NOTIF))
        }
        ValueTest::NotifyBits { bits } => {
            let answer = instruction(RETURN, RET_USER_NOTIF);
            (JUMP_ANY_BIT, std::slice::from_ref(bits), false, answer)
        }
    };
    let mut program = vec![instruction(LOAD, low)];
    for (position, value) in values.iter().enumerate() {
        let remaining = values.len() - position - 1;
        // A miss falls to the next comparison; the last one's is the opposite of a hit.
        let (hit, miss) =
            if hit_passes { (remaining + 1, 0) } else { (remaining, usize::from(remaining == 0)) };
        program.push(jump(code, *value, hit, miss)?);
    }
    program.push(answer);
    Ok(program)
}
