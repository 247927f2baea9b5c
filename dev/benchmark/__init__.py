"""Speed, memory and scaling, compared with other backbones."""
