use super::testing::{assert_enforced, assert_named, without_agreements};
use crate::Table;

#[test]
fn texts_name_what_their_rows_have() {
    assert_named(Table::standard().rows());
}

#[test]
fn every_agreement_of_every_row_is_enforced() {
    let lowered = assert_enforced(Table::standard().rows());
    assert!(lowered > 100, "{lowered} rows were lowered over symbolic shapes");
}

#[test]
fn rows_without_agreements() {
    // CastLike reads the type of its second input; bodies and an equation determine the others.
    let wanted = ["CastLike", "Scan", "SequenceMap"];
    assert_eq!(without_agreements(Table::standard().rows()), wanted);
}
