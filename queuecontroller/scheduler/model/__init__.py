"""What the engine is told and what it says: objects, amounts, matching rules, decisions."""
