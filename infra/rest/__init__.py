"""What our REST servers share: access keys, sessions, bodies, problem documents."""
