"""The Python API of amazon_kclpy 3.1.3, written anew: `kcl`, `messages`, `dispatch`, `checkpoint_error`, `v2`, `v3`.

Under `pykcl run --kclpy` (or `python -m pykcl.compat.kclpy`) a KCLProcess starts a pykcl Worker in this process, and
these modules stand in for `amazon_kclpy`. Without that launcher a KCLProcess speaks the MultiLang protocol over its
standard input and output, as the child of a MultiLangDaemon.

May import everything but cli, local and testing; only `__main__` knows the command line.
"""
