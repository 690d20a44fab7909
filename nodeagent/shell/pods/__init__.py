"""How a pod gets its grants: limits, sources of pods, allocation modes, resizes; `deviceplugin` and
`dra` are the two ways in."""
