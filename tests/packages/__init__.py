"""Tests of the distribution's packages. Fast checks are part of `make test`; those that build, boot
or install are marked `packages` and run by `make test-packages`, as root on Debian 12."""
