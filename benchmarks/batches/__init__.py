"""What a batch gets beside people, in virtual time."""
