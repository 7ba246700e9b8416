"""How good are the answers of the ready-made apps?"""
