"""What `import dpcompare` offers beyond single runs: studies, proofs, and training in a loop of one's own."""
